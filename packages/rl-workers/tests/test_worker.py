"""One process, from the outside: its start, its replies, its death."""

import multiprocessing
import os
import signal
import time

import pytest

from rl_workers import worker_loop
from rl_workers.errors import CallOutOfOrder, WorkerDied
from rl_workers.worker import STARTING, Worker
from rl_workers.worker_loop import WorkerConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def worker():
    config = WorkerConfig(list, ("__len__",), os.getpid(), None)
    worker = Worker(
        multiprocessing.get_context("fork"), config, index=3, name="shelf", timeout_s=20
    )
    yield worker
    worker.kill()


def test_a_new_worker_has_its_start_pending(worker):
    assert worker.pending == STARTING
    with pytest.raises(CallOutOfOrder, match=r"shelf 3 .*: 'starting' is pending"):
        worker.send(worker_loop.request_signal(0), "__len__")
    assert worker.take_reply(20) == ()
    assert worker.pending is None


def test_a_reply_is_an_event(worker):
    worker.take_reply(20)
    assert not worker.has_event(0)
    worker.send(worker_loop.request_signal(0), "__len__")
    assert worker.has_event(20)
    assert worker.read() == (0,)


def test_a_death_is_an_event_and_stays_one(worker):
    worker.take_reply(20)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.has_event(20)
    assert not worker.is_dead  # until somebody asks it for something
    worker.pending = "counting"
    for _ in range(2):
        with pytest.raises(WorkerDied, match="was killed by SIGKILL in 'counting'"):
            worker.take_reply(20)
    assert worker.is_dead
    assert worker.exit_code == -9


def test_a_worker_that_is_asked_to_leave_leaves(worker):
    worker.take_reply(20)
    worker.ask_to_leave(20)
    assert worker.drain(time.monotonic() + 20) is None
    worker.kill(time.monotonic() + 20)
    assert worker.exit_code == 0


def test_kill_ends_it_at_once_and_once_more_is_nothing(worker):
    worker.kill()
    worker.kill()
    assert worker.exit_code == -9
    with pytest.raises(WorkerDied, match="was killed by SIGKILL in 'starting'"):
        worker.take_reply(20)


def test_a_process_that_cannot_be_started_leaves_nothing():
    before = len(os.listdir("/proc/self/fd"))
    config = WorkerConfig(lambda: None, (), os.getpid(), None)
    with pytest.raises(Exception, match="pickle"):
        Worker(multiprocessing.get_context("spawn"), config)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # spawn keeps its resource tracker
