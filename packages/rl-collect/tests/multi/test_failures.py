"""Workers that raise, die and are replaced."""

import functools
import os
import signal

import pytest
import torch
from tensordict import NonTensorData

from rl_collect import MultiAsyncCollector, MultiCollector, MultiSyncCollector
from rl_envs.testing import CountingEnv, DyingEnv, EpisodeStepEnv, RaisingEnv
from rl_workers import WorkerDied

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def test_an_exception_in_a_worker_reaches_the_caller_with_its_number(counting):
    makers = [counting(5), functools.partial(RaisingEnv, 3)]
    collector = MultiSyncCollector(makers, frames_per_batch=8, **FORK)
    with collector, pytest.raises(ZeroDivisionError, match="always fails") as found:
        collector.next()
    assert "collector worker 1" in str(found.value.__cause__)


def test_a_worker_that_dies_is_named(counting):
    makers = [counting(5), functools.partial(DyingEnv, 3)]
    collector = MultiSyncCollector(makers, frames_per_batch=8, **FORK)
    with collector, pytest.raises(WorkerDied, match=r"collector worker 1.*SIGKILL"):
        list(collector)


def test_a_worker_that_dies_is_replaced_and_every_step_stays_genuine():
    makers = [functools.partial(EpisodeStepEnv, [(7, "terminated")])] * 2
    options = {"frames_per_batch": 6, "restart_workers": True}
    with MultiAsyncCollector(makers, **options, **FORK) as collector:
        batches: list = []

        def play_until(num_producers):
            for _ in range(10_000):  # far more than two workers need
                if (
                    len({int(b["collector", "traj_ids"][0]) >> 32 for b in batches})
                    == num_producers
                ):
                    return
                batch = collector.next()
                batches.extend([] if batch is None else [batch])
            pytest.fail("the worker that restarts_workers a dead one hands nothing over")

        play_until(2)
        for deaths, index in enumerate([1, 0, 0], start=1):
            os.kill(collector.pids[index], signal.SIGKILL)
            play_until(2 + deaths)
        restarts = collector.stats()["restarts"]
    assert restarts == 3
    rows = torch.cat(batches)
    shown, after = rows["observation"], rows["next", "observation"]
    assert (shown[:, 1] == rows["collector", "traj_step"]).all()  # (episode, step)
    assert (after[:, 1] == shown[:, 1] + 1).all()
    numbers = rows["collector", "traj_ids"] * 10 + rows["collector", "traj_step"]
    assert len(numbers.unique()) == len(numbers)
    assert len((rows["collector", "traj_ids"] >> 32).unique()) == 5


def test_nothing_is_left_when_it_is_over(counting):
    before = set(os.listdir("/dev/shm"))
    collector = MultiAsyncCollector([counting(5)] * 2, frames_per_batch=4, **FORK)
    pids = collector.pids
    collector.next()
    collector.shutdown()
    collector.shutdown()
    assert not any(os.path.exists(f"/proc/{pid}/cmdline") for pid in pids)
    assert set(os.listdir("/dev/shm")) == before
    with pytest.raises(RuntimeError, match="shut down"):
        collector.next()


def test_options_that_cannot_be_are_refused(policy):
    def make(**options):
        MultiCollector([CountingEnv], **{"sync": True, "frames_per_batch": 2, **options})

    with pytest.raises(TypeError, match="unknown options"):
        make(frames=3)
    with pytest.raises(ValueError, match="exclude each other"):
        make(policy=policy(), policy_factory=policy)
    with pytest.raises(ValueError, match="for sync=True"):
        make(sync=False, cat_results=0)
    with pytest.raises(ValueError, match="'stack' or a dimension"):
        make(cat_results="flat")
    with pytest.raises(ValueError, match="preemptive_threshold"):
        make(preemptive_threshold=1.5)
    with pytest.raises(ValueError, match="no worker"):
        MultiCollector([], sync=True, frames_per_batch=2)
    with pytest.raises(ValueError, match="give one of them"):
        MultiCollector([CountingEnv], sync=True, num_workers=2, frames_per_batch=2)
    with pytest.raises(TypeError, match="give functions"):
        MultiCollector([CountingEnv()], sync=True, frames_per_batch=2)


def test_entries_without_one_size_come_by_message(counting):
    def lists():
        return lambda batch: batch.set("text", NonTensorData("a", batch_size=batch.batch_size))

    options = {"frames_per_batch": 4, "postproc": lists()}
    with MultiSyncCollector([counting(9)] * 2, **options, **FORK) as collector:
        batches = [collector.next() for _ in range(2)]
    assert torch.cat(batches, -1)["observation"][1].flatten().tolist() == [0, 1, 2, 3]


def test_an_environment_and_a_buffer_that_cannot_be_used_are_refused_at_once():
    with pytest.raises(TypeError, match="workers make their environments themselves"):
        MultiAsyncCollector(CountingEnv(), frames_per_batch=4)
    with pytest.raises(TypeError, match=r"replay_buffer needs extend\(\): got str"):
        MultiAsyncCollector([CountingEnv], frames_per_batch=4, replay_buffer="rows")
