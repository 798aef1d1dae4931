"""Random layouts on a CUDA device: what is computed from them there is what the CPU computes."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_layout import Segments, check_layout, join_trajectories, split_trajectories, step_mdp
from rl_layout.testing import batches, plain_batches
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor
from rl_recurrent import GRUModule, LSTMModule
from rl_specs import OneHot
from rl_transforms import RewardSum, StepCounter, multi_step
from rl_value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # what is odd is warned of
DEVICE = "cuda"


def found(function, batch):
    """All tensors that a call gives, on the CPU; or the kind of its error."""
    try:
        made = function(batch)
    except (KeyError, ValueError) as error:
        return type(error)
    return {key: value.cpu() for key, value in made.items(True, True)}


def compared(function, batch, there=None):
    expected = found(function, batch.clone())
    seen = found(there or function, batch.to(DEVICE))
    if isinstance(expected, type):
        assert seen is expected
        return
    assert seen.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(seen[key], value, rtol=2e-4, atol=2e-5, equal_nan=True)


def segmented(batch):
    segments = Segments.of(batch)
    return TensorDict({name: getattr(segments, name) for name in ("starts", "lengths", "kinds")})


@given(batch=plain_batches())
def test_segments_and_findings_are_those_of_the_cpu(batch):
    compared(segmented, batch)
    assert str(check_layout(batch.to(DEVICE))) == str(check_layout(batch))


VIEWS = {
    "several steps": lambda batch: multi_step(batch, 0.9, 3),
    "split and joined": lambda batch: join_trajectories(split_trajectories(batch)),
    "next rows": step_mdp,
    "counts": lambda batch: StepCounter()(RewardSum()(batch)),
}


@given(batch=batches())
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_cpu(name, batch):
    compared(VIEWS[name], batch)


ESTIMATORS = {
    "GAE": lambda net: GAE(gamma=0.9, lmbda=0.8, value_network=net),
    "GAE of its mean": lambda net: GAE(
        gamma=0.9, lmbda=0.8, value_network=net, average_gae=True, differentiable=True
    ),
    "TD0": lambda net: TD0Estimator(gamma=0.9, value_network=net),
    "TD1": lambda net: TD1Estimator(gamma=0.9, value_network=net),
    "TD lambda": lambda net: TDLambdaEstimator(gamma=0.9, lmbda=0.8, value_network=net),
}


@given(batch=batches(), seed=st.integers(0, 99))
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimates_are_those_of_the_cpu(name, batch, seed):
    torch.manual_seed(seed)
    net = TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])
    batch["observation"] = torch.randn(*batch.batch_size, 2)
    batch["next", "observation"] = torch.randn(*batch.batch_size, 2)
    estimator = ESTIMATORS[name](net)
    compared(estimator, batch, copy.deepcopy(estimator).to(DEVICE))


@settings(max_examples=20)
@given(batch=batches(), seed=st.integers(0, 99))
def test_corrected_estimates_are_those_of_the_cpu(batch, seed):
    torch.manual_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(MLP(2, 3, num_cells=[4]), ["observation"], ["logits"]),
        ["logits"],
        spec=OneHot(3),
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    net = TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])
    batch["action"] = nn.functional.one_hot(batch["action"][..., 0], 3).bool()
    batch["sample_log_prob"] = -torch.rand(batch.batch_size)
    estimator = VTrace(gamma=0.9, actor_network=actor, value_network=net)
    compared(estimator, batch, copy.deepcopy(estimator).to(DEVICE))


@settings(max_examples=20)
@given(batch=batches(), layers=st.integers(1, 3), size=st.sampled_from([1, 5, 16, 33]))
@pytest.mark.parametrize("backend", ["auto", "pad", "scan", "triton"])
@pytest.mark.parametrize("kind", [GRUModule, LSTMModule])
def test_recurrent_modules_from_any_states_are_those_of_the_cpu(kind, backend, batch, layers, size):
    torch.manual_seed(layers)
    states = ["h"] if kind is GRUModule else ["h", "c"]
    made = {
        each: kind(
            input_size=2,
            hidden_size=size,
            num_layers=layers,
            in_keys=["observation", *states],
            out_keys=["seen", *(("next", state) for state in states)],
            recurrent_backend=each,
            recurrent_matmul_precision="ieee",
            default_recurrent_mode=True,
        )
        for each in ("pack", backend)
    }
    made[backend].load_state_dict(made["pack"].state_dict())
    for state in states:
        batch[state] = torch.randn(*batch.batch_size, layers, size)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        compared(made["pack"], batch, made[backend].to(DEVICE))
