"""Schedules: what they take of workers, and what an error leaves."""

import functools

import pytest
import torch

from rl_collect.multi.carrier import Processes
from rl_collect.multi.schedule import SyncSchedule
from rl_collect.multi.worker import make_worker
from rl_collect.multi.worker_group import WorkerGroup
from rl_envs.testing import CountingEnv


class FailsOnce(CountingEnv):
    taken = 0

    def _step(self, tensordict):
        after = super()._step(tensordict)
        self.taken += 1
        if self.taken == 2:
            raise ZeroDivisionError("once")
        return after


def test_batches_taken_before_an_error_are_not_lost():
    options = {"frames_per_batch": 3, "policy_factory": None}
    makers = [functools.partial(one, 10**6) for one in (CountingEnv, FailsOnce)]
    make = [functools.partial(make_worker, one, None, options) for one in makers]
    workers = WorkerGroup(Processes(make, start_method="fork"), [0])
    schedule = SyncSchedule(workers)
    try:
        workers.begin(0)
        assert schedule.drain() == []  # the batch is there for sure when the other worker fails
        assert schedule.has_part
        with pytest.raises(ZeroDivisionError, match="once"):
            schedule.next()
        first, second = schedule.next(), schedule.next()
    finally:
        workers.close()
    for pair in zip(first, second, strict=True):
        assert torch.cat(pair, -1)["observation"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
