"""A worker is killed in mid-rollout, again and again, while a learner samples."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import functools
import os
import signal

import pytest
import torch

from rl_collect import MultiAsyncCollector
from rl_envs.testing import EpisodeStepEnv
from rl_layout import check_layout
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

ENDINGS = [(3, "terminated"), (9, "truncated"), (1, "terminated"), (6, "terminated")]
DEATHS = 10


class Mortal(EpisodeStepEnv):
    """Kills its process in the middle of a rollout; the one that replaces it dies later."""

    def __init__(self, first_episode, lifetime):
        super().__init__(ENDINGS, first_episode=first_episode)
        self.left = lifetime

    def _step(self, tensordict):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)


def assert_genuine(rows):
    """Every observation is (episode, step), and says what the step's other entries must be."""
    episode, step = rows["observation"].long().unbind(-1)
    lengths = torch.tensor([length for length, _ in ENDINGS])[episode % len(ENDINGS)]
    terminates = torch.tensor([end == "terminated" for _, end in ENDINGS])[episode % len(ENDINGS)]
    last = step + 1 == lengths
    following = rows["observation"] + torch.tensor([0.0, 1.0])
    assert torch.equal(rows["next", "observation"], following)
    assert torch.equal(rows["next", "reward"].flatten().long(), step + 1)
    assert torch.equal(rows["next", "terminated"].flatten(), last & terminates)
    assert torch.equal(rows["collector", "traj_step"], step)


@pytest.mark.parametrize("whole", [False, True], ids=["fixed frames", "whole trajectories"])
def test_a_learner_samples_on_while_workers_are_killed(whole):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=SliceSampler(slice_len=4), batch_size=32
    )
    makers = [functools.partial(Mortal, 0, 153), functools.partial(Mortal, 500, 211)]
    options = {"trajs_per_batch": 3} if whole else {}
    collector = MultiAsyncCollector(
        makers,
        frames_per_batch=20,
        replay_buffer=buffer,
        restart_workers=True,
        mp_start_method="fork",
        timeout_s=60,
        **options,
    )
    with collector:
        collector.start()
        buffer.wait_until(100, timeout=60)
        while collector.restarts < DEATHS:
            sample = buffer.sample()
            assert not check_layout(sample).errors
            assert_genuine(sample.exclude("is_init", ("next", "truncated"), ("next", "done")))
    rows = buffer[:]
    assert not check_layout(rows).errors
    assert_genuine(rows)
    numbers = rows["collector", "traj_ids"] * 100 + rows["collector", "traj_step"]
    assert len(numbers.unique()) == len(rows)
