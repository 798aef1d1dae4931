"""What a collector takes as a policy."""

from __future__ import annotations

import pytest
from torch import nn

from rl_collect import Collector
from rl_collect.inputs.policies import as_policy
from rl_envs import GymEnv, TransformedEnv
from rl_transforms import CatFrames, InitTracker, StepCounter


@pytest.mark.parametrize("transform", [InitTracker, StepCounter])
def test_a_plain_network_reads_the_observation_beside_flags_and_counters(transform):
    env = TransformedEnv(GymEnv("Pendulum-v1"), transform())
    collector = Collector(env, nn.Linear(3, 1), frames_per_batch=8)
    assert collector.policy.in_keys == ["observation"]
    assert collector.next().shape == (8,)


def test_a_network_of_one_argument_and_two_observations_is_refused():
    env = TransformedEnv(GymEnv("Pendulum-v1"), CatFrames(2, -1, ["observation"]))
    with pytest.raises(TypeError, match=r"takes \['input'\].*'stacked_observation'"):
        as_policy(nn.Linear(4, 2), env)


def test_a_network_that_names_a_flag_reads_it():
    class Net(nn.Module):
        def forward(self, observation, is_init):
            return observation[..., :2]

    env = TransformedEnv(GymEnv("Pendulum-v1"), InitTracker())
    assert as_policy(Net(), env).in_keys == ["observation", "is_init"]
