"""Switches of losses and estimators."""

import inspect

import pytest

from rl_value import (
    GAE,
    A2CLoss,
    BCLoss,
    ClipPPOLoss,
    CQLLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteCQLLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    KLPENPPOLoss,
    PPOLoss,
    REDQLoss,
    ReinforceLoss,
    SACLoss,
    TD0Estimator,
    TD1Estimator,
    TD3BCLoss,
    TD3Loss,
    TDLambdaEstimator,
    VTrace,
)

NO_FLAGS = ["no", 1, None]  # "no" is true
CALLS = {
    TD0Estimator: lambda n: {"gamma": 0.9, "value_network": n.state_critic()},
    TD1Estimator: lambda n: {"gamma": 0.9, "value_network": n.state_critic()},
    TDLambdaEstimator: lambda n: {"gamma": 0.9, "lmbda": 0.9, "value_network": n.state_critic()},
    GAE: lambda n: {"gamma": 0.9, "lmbda": 0.9, "value_network": n.state_critic()},
    VTrace: lambda n: {"gamma": 0.9, "actor_network": n.actor(), "value_network": None},
    A2CLoss: lambda n: {"actor_network": n.actor(), "critic_network": n.state_critic()},
    BCLoss: lambda n: {"actor_network": n.actor()},
    DQNLoss: lambda n: {"value_network": n.action_critic(), "action_space": "categorical"},
    DiscreteSACLoss: lambda n: {
        "actor_network": n.chooser(),
        "qvalue_network": n.action_critic(),
        "action_space": "categorical",
        "num_actions": 3,
    },
    SACLoss: lambda n: {
        "actor_network": n.actor(),
        "qvalue_network": n.critic(),
        "action_spec": n.Spec(),
    },
    TD3Loss: lambda n: {
        "actor_network": n.deterministic(),
        "qvalue_network": n.critic(),
        "action_spec": n.Spec(),
    },
    DDPGLoss: lambda n: {"actor_network": n.deterministic(), "value_network": n.critic()},
    IQLLoss: lambda n: {
        "actor_network": n.actor(),
        "qvalue_network": n.critic(),
        "value_network": n.state_critic(),
    },
}
CALLS |= dict.fromkeys([PPOLoss, ClipPPOLoss, KLPENPPOLoss, ReinforceLoss], CALLS[A2CLoss])
CALLS |= dict.fromkeys([REDQLoss, CrossQLoss, CQLLoss], CALLS[SACLoss])
OTHERWISE = {(DDPGLoss, "delay_qvalue"), (ReinforceLoss, "entropy_bonus")}  # refused as such
CALLS |= {DiscreteCQLLoss: CALLS[DQNLoss], TD3BCLoss: CALLS[TD3Loss]}


def flags_of(kind):
    """The arguments of a class and its bases that are annotated as bools."""
    made = (inspect.signature(one.__init__).parameters for one in kind.__mro__[:-1])
    return sorted({n for each in made for n, p in each.items() if p.annotation in ("bool", bool)})


@pytest.mark.parametrize(
    ("kind", "flag"),
    sorted({(k, flag) for k in CALLS for flag in flags_of(k)} - OTHERWISE, key=str),
)
@pytest.mark.parametrize("value", NO_FLAGS)
def test_flags_are_true_or_false(kind, flag, value, nets):
    with pytest.raises((TypeError, ValueError), match=f"{flag}: expected True or False, got"):
        kind(**CALLS[kind](nets), **{flag: value})


@pytest.mark.parametrize("kind", [BCLoss, DQNLoss, SACLoss])
@pytest.mark.parametrize("value", NO_FLAGS)
def test_use_of_priority_weights_is_a_flag_or_auto(kind, value, nets):
    with pytest.raises(ValueError, match="use_prioritized_weights: expected True, False or 'auto'"):
        kind(**CALLS[kind](nets), use_prioritized_weights=value)
