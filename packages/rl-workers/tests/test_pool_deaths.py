"""Workers that are killed, hang or are replaced."""

import multiprocessing
import multiprocessing.util
import os
import signal

import pytest

from rl_workers import WorkerPool
from rl_workers.errors import (
    WorkerDied,
    WorkerTimeout,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_a_worker_killed_while_idle_is_named_at_the_next_call(gone, pool_of):
    with pool_of(2) as pool:
        os.kill(pool.pids[1], signal.SIGKILL)
        assert gone(pool.pids[1])
        with pytest.raises(WorkerDied, match=r"worker 1 .* was killed by SIGKILL"):
            pool.signal_all("add")
        assert pool.receive(0) == (3,)


def test_worker_died_names_the_call_of_a_killed_worker(gate, pool_of):
    with pool_of(2, gate=gate) as pool:
        pool.signal(0, "wait")
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"worker 0 .* was killed by SIGKILL in 'wait'"):
            pool.receive(0)
        with pytest.raises(WorkerDied, match="in 'wait'"):
            pool.receive(0)


def test_a_death_that_was_raised_is_not_waited_for_again(gate, pool_of):
    with pool_of(2, gate=gate) as pool:
        pool.begin(0, "wait")
        pool.begin(1, "wait")
        os.kill(pool.pids[1], signal.SIGKILL)
        assert pool.wait() == [1]
        with pytest.raises(WorkerDied):
            pool.receive(1)
        with pytest.raises(WorkerTimeout):
            pool.wait(timeout_s=0.01)
        gate.set()
        assert pool.wait() == [0]
        assert pool.receive(0) == 7


def test_a_death_ends_the_wait_for_all_at_once(gate, pool_of):
    with pool_of(3, gate=gate) as pool:
        pool.signal_all("wait")
        os.kill(pool.pids[2], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="worker 2"):
            pool.receive_all()
        gate.set()


def test_the_death_of_an_idle_worker_ends_the_wait_for_others(gate, pool_of):
    with pool_of(2, gate=gate) as pool:
        pool.signal(0, "wait")
        os.kill(pool.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"worker 1 .* while it waited for a call"):
            pool.receive_all()
        gate.set()


def test_an_exit_is_a_death_with_its_code(pool_of):
    with pool_of(1) as pool, pytest.raises(WorkerDied, match="ended with exit code 5 in 'leave'"):
        pool.call(0, "leave", 5)


def test_death_is_seen_though_another_process_holds_the_channel(gate, desk):
    def nest_by_hand():
        made = desk(3, gate)
        multiprocessing.get_context("fork").Process(target=gate.wait, args=(60,)).start()
        return made

    with WorkerPool([nest_by_hand], start_method="fork", signals=desk.signals) as pool:
        pool.signal(0, "wait")
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL in 'wait'"):
            pool.receive(0, timeout_s=20)
        gate.set()


def test_worker_died_says_so_where_a_worker_ends_while_it_starts():
    with pytest.raises(WorkerDied, match=r"killed by SIGKILL in 'starting'.*__main__"):
        WorkerPool([lambda: os.kill(os.getpid(), signal.SIGKILL)], start_method="fork")


def test_a_dead_worker_can_be_replaced(gone, pool_of):
    with pool_of(2) as pool:
        first = pool.pids[1]
        os.kill(first, signal.SIGKILL)
        assert gone(first)
        pool.restart(1)
        assert pool.pids[1] != first
        assert pool.call_all("add") == [3, 4]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_revive_replaces_dead_and_silent_workers(how, gate, pool_of):
    with pool_of(4, gate=gate) as pool:
        old = pool.pids
        pool.begin(0, "wait")  # answers in time, and its reply is dropped
        pool.begin(1, "fail")
        os.kill(pool.pids[2], how)
        gate.set()
        assert pool.revive(timeout_s=20 if how == signal.SIGKILL else 1) == [2]
        assert pool.pending == [None] * 4
        assert [pid for pid in pool.pids if pid in old] == [old[0], old[1], old[3]]
        assert pool.revive() == []


def test_a_worker_that_is_busy_for_too_long_is_replaced(gate, pool_of):
    with pool_of(2, gate=gate) as pool:
        pool.call(1, "add", 5)
        for index in range(2):
            pool.begin(index, "wait")
        assert pool.revive(timeout_s=0.1) == [0, 1]
        assert pool.call(1, "add") == 4  # a new one


def test_a_timeout_says_who_was_waited_for_and_how_long(gate, pool_of):
    with pool_of(2, gate=gate) as pool:
        pool.signal(1, "wait")
        for receive in (lambda: pool.receive(1, timeout_s=0.05), lambda: pool.wait(timeout_s=0.05)):
            with pytest.raises(WorkerTimeout, match=r"worker 1 .* 'wait' within 0.05 s"):
                receive()
        with pytest.raises(WorkerTimeout, match=r"worker 1 .* 'wait' within 0.05 s"):
            pool.receive_all(timeout_s=0.05)
        gate.set()
        assert pool.receive(1) == (7,)  # late, but not lost


def test_a_worker_that_is_not_ready_in_time_is_ended(gate):
    before = multiprocessing.active_children()
    with pytest.raises(WorkerTimeout, match=r"did not answer 'starting' within 0.05 s"):
        WorkerPool([gate.wait], start_method="fork", start_timeout_s=0.05)
    assert multiprocessing.active_children() == before


def test_a_worker_that_takes_nothing_is_given_up(gate, pool_of):
    with pool_of(1, gate=gate, timeout_s=0.05) as pool:
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match="does not take 'echo'"):
            pool.begin(0, "echo", bytes(10_000_000))
        pool.close(timeout_s=0.05)
