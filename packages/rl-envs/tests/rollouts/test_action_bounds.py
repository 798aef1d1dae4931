"""A policy whose actions leave out a part of the action space."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch.distributions import Uniform

from rl_envs import Pendulums


class Between(Uniform):
    def __init__(self, loc, low=-1.0, high=1.0):
        super().__init__(low + loc * 0, high + loc * 0)


def policy(out="action", **bounds):
    loc = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["loc"])
    draw = ProbabilisticTensorDictModule(
        ["loc"],
        [out],
        distribution_class=Between,
        distribution_kwargs=bounds or None,
        default_interaction_type="random",
    )
    return ProbabilisticTensorDictSequential(loc, draw)


def said(play):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        play()
    return [str(one.message) for one in told]


def test_default_bounds_inside_those_of_the_action_space_are_warned_of_once():
    env, narrow = Pendulums(3), policy()
    told = said(lambda: [env.rollout(2, narrow) for _ in range(2)])
    assert len(told) == 1
    assert "by Between from -1 to 1, and the environment takes -2 to 2" in told[0]
    assert "spec=env.action_spec" in told[0]
    assert len(said(lambda: env.rollout(2, policy()))) == 1  # another policy


@pytest.mark.parametrize("bounds", [{"low": -2.0, "high": 2.0}, {"low": 0.0, "high": 0.5}])
def test_bounds_that_were_given_are_meant(bounds):
    assert not said(lambda: Pendulums(3).rollout(2, policy(**bounds)))


def test_actions_that_are_changed_after_they_were_drawn_are_not_looked_at():
    twice = TensorDictModule(lambda drawn: 2 * drawn, ["drawn"], ["action"])
    scaled = TensorDictSequential(*policy("drawn"), twice)
    assert not said(lambda: Pendulums(3).rollout(2, scaled))
    assert not said(lambda: Pendulums(3).rollout(2))
