"""The end of a pool, and of the process that has it."""

import functools
import multiprocessing
import multiprocessing.util
import os
import signal
import subprocess
import sys

import pytest

from rl_workers import WorkerPool
from rl_workers.errors import (
    CallOutOfOrder,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_a_closed_pool_says_so(pool_of):
    pool = pool_of(1)
    pool.close()
    with pytest.raises(CallOutOfOrder, match="closed"):
        pool.signal(0, "add")


def test_close_ends_all_processes_and_once_more_is_nothing(gone, pool_of):
    before = multiprocessing.active_children()
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = pool_of(2)
    pids = pool.pids
    pool.close()
    pool.close()
    assert all(gone(pid, 0) for pid in pids)
    assert multiprocessing.active_children() == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_close_lets_a_pending_call_finish(gate, pool_of):
    pool = pool_of(1, gate=gate)
    pool.signal(0, "wait")
    gate.set()
    pool.close()
    assert pool.exit_codes == [0]


def test_close_kills_a_worker_that_does_not_leave(gate, pool_of):
    pool = pool_of(2, gate=gate)
    pool.signal(1, "wait")
    pool.close(timeout_s=0.2)
    assert pool.exit_codes == [0, -signal.SIGKILL]


def test_an_exception_in_close_arrives_when_all_are_gone(gone):
    class Sticky:
        def close(self):
            raise OSError("the door is stuck")

    pool = WorkerPool([Sticky, list], start_method="fork")
    pids = pool.pids
    with pytest.raises(OSError, match="the door is stuck"):
        pool.close()
    assert all(gone(pid, 0) for pid in pids)


class Slow:
    """Its channel ends first, its process after some work or never."""

    def __init__(self, work):
        multiprocessing.util.Finalize(None, self.linger, (work,), exitpriority=0)

    @staticmethod
    def linger(work):
        os.closerange(3, 1000)
        work()

    def close(self):
        raise OSError("the door is stuck")


def test_close_does_not_warn_of_a_process_that_ends_soon_after_its_channel(caplog):
    work = functools.partial(sum, range(1_000_000))
    pool = WorkerPool([functools.partial(Slow, work)] * 2, start_method="fork")
    with pytest.raises(OSError, match="the door is stuck"):
        pool.close()
    assert caplog.messages == []
    assert pool.exit_codes == [0, 0]


def test_close_warns_of_a_worker_that_does_not_end_and_raises_its_exception(caplog, monkeypatch):
    monkeypatch.setattr("rl_workers.pool.SILENT_S", 0.1)
    pool = WorkerPool([functools.partial(Slow, signal.pause)], start_method="fork")
    with pytest.raises(OSError, match="the door is stuck"):
        pool.close(timeout_s=1.0)
    assert caplog.messages == [
        f"waiting up to 1 s more for worker 0 (process {pool.pids[0]}) to end: then it is "
        "killed. close(timeout_s=...) sets the limit."
    ]
    assert pool.exit_codes == [-signal.SIGKILL]


def test_close_names_the_call_that_keeps_a_worker_from_ending(gate, caplog, monkeypatch, pool_of):
    monkeypatch.setattr("rl_workers.pool.SILENT_S", 0.1)
    pool = pool_of(1, gate=gate)
    pool.signal(0, "wait")
    pool.close(timeout_s=0.3)
    assert " to end 'wait': then it is killed." in caplog.text


def test_a_dropped_pool_warns_and_its_workers_leave(gone, pool_of):
    pool = pool_of(2)
    pids = pool.pids
    kept = [pool]
    del pool
    with pytest.warns(ResourceWarning, match="pool of 2 worker processes was dropped"):
        kept.clear()
    assert all(gone(pid) for pid in pids)
    multiprocessing.active_children()  # which takes their exit codes


def test_a_worker_may_hold_a_pool(gone, pool_of):
    with pool_of(2) as pool:
        inner = [pid for pids in pool.call_all("nest") for pid in pids]
        assert len({os.getpid(), *pool.pids, *inner}) == 5
    assert all(gone(pid) for pid in inner)


def test_workers_ignore_interrupts(pool_of):
    with pool_of(1) as pool:
        assert pool.call(0, "interrupt_handler") == signal.SIG_IGN


@pytest.fixture
def parent(hold):
    """Starts a process that holds workers in workers; gives it and their pids."""
    context, made = multiprocessing.get_context("fork"), []

    def start(how):
        near, far = context.Pipe()
        process = context.Process(target=hold, args=(far, how))
        process.start()
        made.append((process, near, far))
        assert near.poll(20)
        return process, near.recv()

    yield start
    for process, *ends in made:
        process.kill()
        process.join()
        for end in ends:
            end.close()


@pytest.mark.alone
def test_workers_end_with_a_killed_parent(parent, gone):
    before = set(os.listdir("/dev/shm"))
    process, pids = parent("sleep")
    assert len(set(pids)) == 4
    process.kill()
    assert all(gone(pid) for pid in pids)
    assert set(os.listdir("/dev/shm")) <= before


def test_an_interrupt_of_all_reaches_the_parent_which_ends_all(parent, capfd, gone):
    process, pids = parent("wait")
    os.killpg(process.pid, signal.SIGINT)
    process.join(20)
    assert process.exitcode == 1
    # workers of a worker that was killed in its call end when they notice
    assert all(gone(pid) for pid in pids)
    assert capfd.readouterr().err.count("KeyboardInterrupt") == 1


FORGETFUL = """
import os
from rl_workers import WorkerPool
pool = WorkerPool([list, list], start_method="fork")
print(*pool.pids)
"""


def test_workers_end_with_a_program_that_does_not_close_the_pool(gone):
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORGETFUL], stdout=subprocess.PIPE, text=True
    ) as process:
        pids = process.stdout.readline().split()
        assert process.wait(20) == 0
    assert len(pids) == 2
    assert all(gone(int(pid), 0) for pid in pids)
