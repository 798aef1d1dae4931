"""Processes that are killed, interrupted or late, each at a chosen moment."""

import functools
import os
import signal
import subprocess
import sys

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import MultiAsyncCollector, MultiSyncCollector
from rl_collect.multi.batch_transport import SharedBatchSlots
from rl_collect.multi.worker import CollectorWorker
from rl_collect.weights.load import load_weights
from rl_collect.weights.shared_weights import SharedWeights
from rl_envs.testing import CountingEnv, DyingEnv, EpisodeStepEnv
from rl_slabs import Rows
from rl_workers import Channel, WorkerDied, WorkerTimeout

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


class DiesOnce(CountingEnv):
    """Kills its process on a step, unless a file says that it did so before."""

    def __init__(self, path, at_step=2):
        super().__init__(10**6)
        self.path, self.at_step = path, at_step

    def _step(self, tensordict):
        after = super()._step(tensordict)
        if int(self._count) == self.at_step and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return after


class Waits(CountingEnv):
    """Its first step lasts until somebody ends the process."""

    def _step(self, tensordict):
        signal.pause()


class Weighted(nn.Module):
    """Writes its weight where it can be seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.tensor([True, False]), self.weight.clone()


def kill(collector, index, gone):
    """Kill a worker, and wait until it is gone."""
    pid = collector.pids[index]
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
@pytest.mark.parametrize("at_step", [1, 5])  # before the first batch, and in the second
def test_a_worker_that_is_killed_while_it_is_waited_for_is_replaced(tmp_path, kind, at_step):
    makers = [
        functools.partial(CountingEnv, 10**6),
        functools.partial(DiesOnce, tmp_path / "died", at_step),
    ]
    frames = 6 if kind is MultiSyncCollector else 3
    options = {"frames_per_batch": frames, "restart_workers": True}
    with kind(makers, **options, **FORK) as collector:
        batches = [collector.next() for _ in range(8)]
        while not collector.restarts:
            batches.append(collector.next())
        stats = collector.stats()
    assert stats["restarts"] == 1
    assert all(batch is not None for batch in batches)
    rows = torch.cat([batch.reshape(-1) for batch in batches])
    assert torch.equal(rows["observation"][:, 0], rows["collector", "traj_step"].float())
    assert (rows["next", "observation"] == rows["observation"] + 1).all()
    numbers = rows["collector", "traj_ids"] * 100 + rows["collector", "traj_step"]
    assert len(numbers.unique()) == len(numbers)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_a_worker_that_is_killed_between_two_batches_is_replaced(kind, gone):
    makers = [functools.partial(EpisodeStepEnv, [(7, "terminated")])] * 2
    options = {"frames_per_batch": 6, "restart_workers": True}
    with kind(makers, **options, **FORK) as collector:
        for number in range(6):
            if number == 3:
                kill(collector, 1, gone)
            batch = collector.next()
            assert batch is not None
            assert batch.shape == ((2, 3) if kind is MultiSyncCollector else (6,))
        kill(collector, 0, gone)
        assert len(collector.stats()["workers"]) == 2
        collector.set_seed(0)
        collector.reset()
        assert collector.next() is not None
        assert collector.restarts == 2


POINTS = {
    "before it copies": (SharedBatchSlots.write, 0),
    "while it copies": (Rows._write_on_cpu, 70),  # private: between two leaves nothing is called
    "when it has copied": (CollectorWorker.message, 0),
    "at the message": (Channel.send, 0),
    "when it has seen new weights": (SharedWeights.load_into, 0),
    "while it takes new weights": (load_weights, 0),
}


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_may_be_killed_at_any_point(trap, kind, point):
    acting = TensorDictModule(Weighted(), ["observation"], ["action", "weight"])
    makers = [functools.partial(EpisodeStepEnv, [(7, "terminated")])] * 2
    options = {"frames_per_batch": 6, "restart_workers": True}
    options["pre_collect_hook"] = trap(*POINTS[point])
    with kind(makers, acting, **options, **FORK) as collector:
        batches, producers = [], set()
        for number in range(1, 1000):
            batches.append(collector.next())
            producers |= set((batches[-1]["collector", "traj_ids"] >> 32).flatten().tolist())
            collector.update_policy_weights_({"module.weight": torch.full((1,), float(number))})
            if number >= 12 and len(producers) == 3:  # until the new worker has delivered
                break
        assert collector.restarts == 1
    rows = torch.cat([batch.reshape(-1) for batch in batches])
    assert len(rows) == 6 * len(batches)
    assert torch.equal(rows["observation"][:, 1], rows["collector", "traj_step"])
    assert torch.equal(rows["next", "observation"][:, 1], rows["collector", "traj_step"] + 1)
    versions = rows["collector", "policy_version"]
    assert torch.equal(rows["weight"][:, 0], versions.float())
    numbers = rows["collector", "traj_ids"] * 10 + rows["collector", "traj_step"]
    assert len(numbers.unique()) == len(numbers)
    assert len(producers) == 3


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_a_worker_that_is_stopped_is_named_and_what_it_had_is_not_lost(kind):
    collector = kind([functools.partial(CountingEnv, 10**6)], frames_per_batch=3, **FORK)
    with collector:
        # private: a timeout is fixed when the workers start
        batches, pool = [collector.next()], collector._workers.pool
        pid = collector.pids[0]
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until it is stopped
        pool._timeout_s = 0.2
        late = pytest.raises(WorkerTimeout, match=rf"collector worker 0 \(process {pid}\).*play")
        with late:
            batches.extend(iter(collector))  # what it had delivered before comes first
        os.kill(pid, signal.SIGCONT)
        pool._timeout_s = 60.0
        batches += [collector.next() for _ in range(3)]
    rows = torch.cat([batch.reshape(-1) for batch in batches])
    counts = rows["observation"].flatten()
    assert torch.equal(counts, torch.arange(3.0 * len(batches)))


def test_a_worker_that_is_stopped_is_ended_by_shutdown(gone):
    collector = MultiSyncCollector([CountingEnv], frames_per_batch=3, **FORK)
    collector.next()
    pid = collector.pids[0]
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    collector.shutdown(timeout_s=0.1)
    assert gone(pid)


def test_a_worker_that_dies_again_and_again_is_given_up():
    options = {"frames_per_batch": 8, "restart_workers": True}
    collector = MultiSyncCollector([functools.partial(DyingEnv, 3)], **options, **FORK)
    with collector, pytest.raises(WorkerDied, match=r"collector worker 0.*SIGKILL"):
        collector.next()
    assert collector.restarts == 3


def test_a_new_worker_acts_with_the_weights_that_were_published_last(gone):
    acting = TensorDictModule(Weighted(), ["observation"], ["action", "weight"])
    options = {"frames_per_batch": 2, "restart_workers": True}
    with MultiSyncCollector([CountingEnv], acting, **options, **FORK) as collector:
        with torch.no_grad():
            acting.module.weight.fill_(3)  # not published
        kill(collector, 0, gone)
        batch = collector.next()
        assert (batch["weight"] == 0).all()
        assert (batch["collector", "policy_version"] == 0).all()
        collector.update_policy_weights_()
        kill(collector, 0, gone)
        batch = collector.next()
        assert (batch["weight"] == 3).all()
        assert (batch["collector", "policy_version"] == 1).all()


def test_a_late_worker_is_named_and_shutdown_does_not_wait_for_it():
    collector = MultiSyncCollector(
        [Waits], frames_per_batch=2, mp_start_method="fork", timeout_s=0.2
    )
    with pytest.raises(WorkerTimeout, match=r"collector worker 0.*play"):
        collector.next()
    pid = collector.pids[0]
    collector.shutdown(timeout_s=0.1)
    assert not os.path.exists(f"/proc/{pid}/cmdline")


LEARNER = """
import signal
from rl_collect import MultiSyncCollector
from rl_envs.testing import CountingEnv

# a shell that starts its commands in the background lets them ignore interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)

class Waits(CountingEnv):
    def _step(self, tensordict):
        signal.pause()

class Push(torch.nn.Linear):
    def forward(self, observation):
        return super().forward(observation) > 9

options = {"frames_per_batch": 3, "mp_start_method": "fork"}
collector = MultiSyncCollector([Waits], Push(1, 2), **options)
try:
    print(*collector.pids, flush=True)
    collector.next()
finally:
    collector.shutdown(timeout_s=0.2)
"""


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_learner_ends(tmp_path, how, gone):
    (tmp_path / "learner.py").write_text("import torch" + LEARNER)
    before = set(os.listdir("/dev/shm"))
    command, pipe = [sys.executable, tmp_path / "learner.py"], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as learner:
        pids = [int(one) for one in learner.stdout.readline().split()]
        learner.send_signal(how)
        _, told = learner.communicate(timeout=60)
    assert len(pids) == 1
    assert ("KeyboardInterrupt" in told) == (how == signal.SIGINT)
    assert all(gone(pid) for pid in pids)
    assert set(os.listdir("/dev/shm")) <= before
