"""Statistics that run along are those of what environments showed, in one process or in several."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch

from rl_collect import Collector
from rl_envs import ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv
from rl_transforms import VecNorm

ENDINGS = [(3, "terminated"), (7, "truncated"), (4, "terminated"), (2, "terminated")]


def shown(batch):
    """Every observation once: what steps showed, and what resets did."""
    first = batch["observation"][batch["observation"][..., 1] == 0]
    return torch.cat([batch["next", "observation"].flatten(0, -2), first]).double()


def assert_are_those_of(norm, seen):
    count, mean, std = norm.statistics()
    assert count == len(seen)
    torch.testing.assert_close(mean, seen.mean(0))
    torch.testing.assert_close(std, seen.std(0, correction=0))


@pytest.mark.parametrize("through", ["rollout", "collector"])
def test_every_observation_of_an_environment_is_counted_once(through):
    norm = VecNorm(["observation"], ["scaled"], decay=1)
    env = TransformedEnv(EpisodeStepEnv(ENDINGS, (3,)), norm)
    if through == "rollout":
        batch = env.rollout(24, break_when_any_done=False)
    else:
        (batch,) = Collector(env, None, frames_per_batch=72, total_frames=72)
    assert not batch["next", "done"][:, -1].any()  # a collector would have begun the next one
    assert_are_those_of(norm, shown(batch))
    going_on = ~batch["next", "done"][:, :-1, 0]
    assert batch["next", "scaled"][:, :-1][going_on].equal(batch["scaled"][:, 1:][going_on])


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_environments_move_one_set_of_shared_statistics(kind):
    norm = VecNorm(["observation"], ["scaled"], decay=1).share_memory(lanes=4)

    def make():
        return TransformedEnv(EpisodeStepEnv(ENDINGS, (2,)), norm)

    env = SerialEnv(2, make) if kind == "serial" else ParallelEnv(2, make, mp_start_method="fork")
    try:
        seen = shown(env.rollout(20, break_when_any_done=False))
    finally:
        env.close()
    assert_are_those_of(norm, seen)
