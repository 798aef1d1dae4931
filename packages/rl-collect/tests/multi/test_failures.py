"""Workers that raise, die and are replaced."""

import functools
import os
import signal

import pytest
import torch
from tensordict import NonTensorData

from rl_collect import MultiAsyncCollector, MultiCollector
from rl_envs.testing import CountingEnv, DyingEnv, RaisingEnv
from rl_workers import WorkerDied

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def test_an_exception_in_a_worker_reaches_the_caller_with_its_number(carrier, counting):
    makers = [counting(5), functools.partial(RaisingEnv, 3)]
    collector = carrier.sync(makers, frames_per_batch=8)
    with collector, pytest.raises(ZeroDivisionError, match="always fails") as found:
        collector.next()
    assert "collector worker 1" in str(found.value.__cause__)


def test_a_worker_that_dies_is_named(carrier, counting):
    makers = [counting(5), functools.partial(DyingEnv, 3)]
    collector = carrier.sync(makers, frames_per_batch=8)
    # neither Ray nor a rank knows what killed it
    how = "SIGKILL|its worker process has died|Connection closed by peer|Connection reset by peer"
    with collector, pytest.raises(WorkerDied, match=rf"collector worker 1.*({how})"):
        list(collector)


@pytest.mark.parametrize("together", [True, False])
def test_workers_go_on_with_fewer_where_some_are_enough(carrier, together, counting):
    make = carrier.sync if together else carrier.one_by_one
    options = {"frames_per_batch": 6, "min_workers": 1}
    with make([counting(10**6)] * 2, **options) as collector:
        batches = [collector.next()]
        while collector.stats()["missing"] or len(batches) < 4:  # actors may start one by one
            batches.append(collector.next())
        os.kill(collector.pids[1], signal.SIGKILL)
        while not collector.stats()["missing"]:
            batches.append(collector.next())
        batches += [collector.next() for _ in range(5)]
        assert collector.stats()["missing"] == [1]
        assert batches[-1].shape == ((1, 3) if together else (6,))
        collector.reset()
        assert collector.next() is not None
        if together:
            with pytest.raises(RuntimeError, match=r"workers \[1\] of 2 are missing"):
                collector.state_dict()
        os.kill(collector.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="collector worker 0"):
            list(collector)
    rows = torch.cat([batch.reshape(-1) for batch in batches])
    for number in rows["collector", "traj_ids"].unique():
        one = rows[rows["collector", "traj_ids"] == number]
        assert one["observation"].flatten().tolist() == list(range(len(one)))


@pytest.mark.alone
def test_nothing_is_left_when_it_is_over(starting_carrier, counting):
    before = set(os.listdir("/dev/shm"))
    collector = starting_carrier.one_by_one([counting(5)] * 2, frames_per_batch=4)
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
    with pytest.raises(TypeError, match=r"num_workers must be an integer: got 1\.5"):
        MultiCollector(CountingEnv, sync=True, num_workers=1.5, frames_per_batch=2)
    with pytest.raises(TypeError, match="give functions"):
        MultiCollector([CountingEnv()], sync=True, frames_per_batch=2)


def test_entries_without_one_size_come_by_message(carrier, counting):
    def lists():
        return lambda batch: batch.set("text", NonTensorData("a", batch_size=batch.batch_size))

    options = {"frames_per_batch": 4, "postproc": lists()}
    with carrier.sync([counting(9)] * 2, **options) as collector:
        batches = [collector.next() for _ in range(2)]
    assert torch.cat(batches, -1)["observation"][1].flatten().tolist() == [0, 1, 2, 3]


class Rows(list):
    """A buffer of this process."""

    add = list.append


def test_an_environment_and_a_buffer_that_cannot_be_used_are_refused_at_once():
    with pytest.raises(TypeError, match="workers make their environments themselves"):
        MultiAsyncCollector(CountingEnv(), frames_per_batch=4)
    with pytest.raises(TypeError, match=r"replay_buffer needs extend\(\): got str"):
        MultiAsyncCollector([CountingEnv], frames_per_batch=4, replay_buffer="rows")
    with pytest.raises(ValueError, match="buffer that workers share"):
        MultiAsyncCollector(
            [CountingEnv], frames_per_batch=4, replay_buffer=Rows(), extend_buffer=False
        )
