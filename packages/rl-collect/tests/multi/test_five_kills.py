"""Five workers killed in one run: the stream continues, and what is held for them does not grow."""

import functools
import os
import signal
import time

import pytest
import torch

from rl_envs.testing import EpisodeStepEnv
from rl_layout import check_layout

EPISODES = functools.partial(EpisodeStepEnv, [(7, "terminated"), (4, "truncated")])


def held():
    """The descriptors of shared memory here, the connections, and the bytes that are mapped."""
    names = []
    for one in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:  # the one by which the folder was read
            continue
    mapped = 0
    with open("/proc/self/maps") as lines:
        for line in lines:
            if "/memfd:" in line:
                first, _, last = line.split()[0].partition("-")
                mapped += int(last, 16) - int(first, 16)
    return sum(name.startswith("/memfd:") for name in names), mapped


class Run:
    """What one collector has delivered."""

    def __init__(self, collector):
        self.collector = collector
        self.batches = {}  # by producer
        self.longest_s = 0.0

    def play_until(self, is_enough):
        for _ in range(20_000):  # far more than are needed
            if is_enough():
                return
            self.take()
        pytest.fail("a worker that was killed was not replaced")

    def take(self):
        begin = time.monotonic()
        batch = self.collector.next()
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        producer = int(batch["collector", "traj_ids"][0]) >> 32
        self.batches.setdefault(producer, []).append(batch)

    def has(self, num_producers):
        """Whether so many have delivered, and each of them has slots in shared memory."""
        return len(self.batches) == num_producers and min(map(len, self.batches.values())) >= 3

    def check(self, num_producers):
        """Nothing is lost, repeated or torn in what was delivered."""
        assert len(self.batches) == num_producers
        for batches in self.batches.values():
            assert not check_layout(torch.cat(batches)).findings
        rows = torch.cat([one for batches in self.batches.values() for one in batches])
        assert torch.equal(rows["observation"][:, 1], rows["collector", "traj_step"])
        assert torch.equal(rows["next", "observation"][:, 1], rows["collector", "traj_step"] + 1)
        numbers = rows["collector", "traj_ids"] * 10 + rows["collector", "traj_step"]
        assert len(numbers.unique()) == len(numbers)


def test_five_workers_that_are_killed_and_replaced_leave_memory_flat(starting_carrier):
    options = {"frames_per_batch": 60, "restart_workers": True}
    with starting_carrier.one_by_one([EPISODES] * 2, **options) as collector:
        run, after = Run(collector), []
        run.play_until(lambda: run.has(2))
        run.longest_s = 0.0
        for kills in range(6):
            if kills:
                os.kill(collector.pids[kills % 2], signal.SIGKILL)
            run.play_until(lambda count=2 + kills: run.has(count))
            after.append(held())
        assert collector.restarts == 5
        assert run.longest_s < 3  # the learner waits for no worker that starts
    assert len(set(after)) == 1, after
    assert after[0][1] > 0
    run.check(2 + 5)


@pytest.mark.parametrize("carrier", ["ranks"], indirect=True)
def test_five_ranks_of_six_that_are_killed_leave_memory_flat(carrier):
    options = {"frames_per_batch": 60, "min_workers": 1}
    with carrier.one_by_one([EPISODES] * 6, **options) as collector:
        run, after = Run(collector), []
        run.play_until(lambda: run.has(6))
        for index in range(5):
            os.kill(collector.pids[index], signal.SIGKILL)
            lost = list(range(index + 1))
            run.play_until(lambda lost=lost: collector.stats()["missing"] == lost)
            for _ in range(5):
                run.take()
            after.append(held())
        assert run.longest_s < 3
    assert len(set(after)) == 1, after
    assert after[0][1] > 0
    run.check(6)
