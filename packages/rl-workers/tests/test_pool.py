"""Supervised processes: what they promise when all goes well, and when they or their parent end."""

import functools
import multiprocessing
import multiprocessing.util
import os
import select
import signal
import subprocess
import sys
import threading

import cloudpickle
import pytest
import torch
from tensordict import TensorDict, set_lazy_legacy

from rl_workers import WorkerPool
from rl_workers.errors import (
    CallOutOfOrder,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    WorkerTraceback,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
# this file is no module that another process could import
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Stubborn(Exception):
    """Says something else when it is made again from its arguments."""

    def __init__(self, code):
        super().__init__(f"code {code}")


class Desk:
    """Does what a test needs, and waits only for what the test sets."""

    signals = ("add", "nothing", "wait", "fail")

    def __init__(self, start=0, gate=None):
        self.total = start
        self.gate = gate

    def add(self, *numbers):
        self.total += sum(numbers)
        return self.total

    def nothing(self):
        pass

    def wait(self):
        assert self.gate.wait(60)
        return 7

    def fail(self):
        raise KeyError("no such desk")

    def raise_(self, error):
        raise error

    def fail_locally(self):
        class Local(Exception):
            pass

        raise Local("here")

    def fail_with(self, kind, *args):
        raise kind(*args)

    def fail_unpicklably(self):
        raise ValueError("held", threading.Lock())

    def echo(self, value):
        return value

    def lock(self):
        return threading.Lock()

    def leave(self, code):
        raise SystemExit(code)

    def pid(self):
        return os.getpid()

    def nest(self):
        self.inner = pool_of(1)
        return self.inner.pids

    def interrupt_handler(self):
        return signal.getsignal(signal.SIGINT)

    def close(self):
        if hasattr(self, "inner"):
            self.inner.close()


def pool_of(count, *, start=3, gate=None, **options):
    options = {"start_method": "fork", "timeout_s": 20, "signals": Desk.signals} | options
    return WorkerPool([lambda i=i: Desk(start + i, gate) for i in range(count)], **options)


class Gate:
    """An event for forked processes that a killed one cannot lock, as it can multiprocessing's."""

    def __init__(self):
        self.far, self.near = os.pipe()

    def wait(self, timeout_s=60):
        waiting = select.poll()
        waiting.register(self.far, select.POLLIN)
        return bool(waiting.poll(timeout_s * 1000))

    def set(self):
        os.write(self.near, b"!")


@pytest.fixture
def gate():
    """Opened after the test, so that no desk waits for longer than it."""
    gate = Gate()
    yield gate
    gate.set()
    os.close(gate.near)
    os.close(gate.far)


def gone(pid, timeout_s=20):
    """Whether a process that need not be a child is gone, waiting for that."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(timeout_s * 1000))
    finally:
        os.close(descriptor)


# calls


def test_signals_carry_whole_numbers_both_ways():
    with pool_of(2) as pool:
        pool.signal(0, "add", 5, -2)
        pool.signal(1, "add", 2**62)
        assert pool.receive_all() == [(6,), (4 + 2**62,)]
        pool.signal_all("nothing")
        assert pool.receive_all() == [(), ()]


def test_calls_carry_anything_of_any_length():
    with pool_of(1) as pool:
        long = bytes(range(256)) * 5000
        assert pool.call(0, "echo", {"state": long}) == {"state": long}
        assert pool.call_all("add", [(5,)]) == [8]


def test_wait_names_the_workers_that_are_ready(gate):
    with pool_of(3, gate=gate) as pool:
        pool.signal(0, "wait")
        pool.signal(2, "add")
        assert pool.wait() == [2]
        assert pool.receive(2) == (5,)
        gate.set()
        assert pool.wait() == [0]
        assert pool.receive(0) == (7,)


@pytest.mark.parametrize(("method", "count"), [("spawn", 1), (None, 2)])
def test_each_start_method_takes_a_lambda(method, count):
    with pool_of(count, start_method=method) as pool:
        assert pool.call_all("add", [(5,), (11,)]) == [8, 15][:count]
        assert len({os.getpid(), *pool.pids}) == count + 1


# calls out of order


def test_a_second_call_names_the_pending_one(gate):
    with pool_of(2, gate=gate) as pool:
        pool.signal(1, "wait")
        with pytest.raises(
            CallOutOfOrder, match=r"worker 1 \(process \d+\).*'add': 'wait' is pend"
        ):
            pool.signal(1, "add")
        assert pool.pending == [None, "wait"]
        gate.set()
        assert pool.receive(1) == (7,)


def test_a_reply_that_nobody_asked_for_is_refused():
    with pool_of(1) as pool:
        with pytest.raises(CallOutOfOrder, match="no call pending"):
            pool.receive(0)
        with pytest.raises(CallOutOfOrder, match="nothing to wait for"):
            pool.wait()


def test_an_unknown_signal_and_an_unknown_worker_are_named():
    with pool_of(2) as pool:
        with pytest.raises(KeyError, match="'jump' is no signal"):
            pool.signal(0, "jump")
        with pytest.raises(IndexError, match="2 workers, from 0: got 2"):
            pool.signal(2, "add")


def test_a_closed_pool_says_so():
    pool = pool_of(1)
    pool.close()
    with pytest.raises(CallOutOfOrder, match="closed"):
        pool.signal(0, "add")


def test_pool_refuses_an_empty_list_of_workers_and_timeouts_of_zero():
    with pytest.raises(ValueError, match="at least one worker"):
        WorkerPool([])
    with pytest.raises(ValueError, match="timeout_s=0"):
        WorkerPool([list], timeout_s=0)
    with pytest.raises(TypeError, match="got int"):
        WorkerPool([3])


# exceptions


def test_an_exception_keeps_its_type_and_brings_its_traceback():
    with pool_of(2) as pool:
        pool.signal(1, "fail")
        with pytest.raises(KeyError, match="no such desk") as caught:
            pool.receive(1)
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerTraceback)
        assert "worker 1 (process" in str(cause)
        assert "in 'fail'" in str(cause)
        assert 'raise KeyError("no such desk")' in str(cause)
        assert pool.call(1, "add", 5) == 9  # and the worker continues


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (("fail_with", Stubborn, 3), "Stubborn: code 3"),
        (("fail_unpicklably",), "ValueError"),
        (("fail_locally",), "fail_locally.<locals>.Local: here"),
    ],
)
def test_an_exception_that_cannot_be_made_again_is_named(call, name):
    with pool_of(1) as pool:
        with pytest.raises(WorkerError, match=name) as caught:
            pool.call(0, *call)
        assert "Traceback" in str(caught.value.__cause__)


def test_the_attributes_of_an_exception_travel():
    error = OSError(28, "full", "a/b")
    error.detail = (3, 5)
    with pool_of(1) as pool, pytest.raises(OSError, match="full") as caught:
        pool.call(0, "raise_", error)
    assert (caught.value.errno, caught.value.filename, caught.value.detail) == (28, "a/b", (3, 5))


def test_a_reply_that_cannot_be_pickled_is_an_exception():
    with pool_of(1) as pool, pytest.raises(TypeError, match="pickle"):
        pool.call(0, "lock")


def test_all_replies_are_taken_before_the_first_exception_is_raised():
    with pool_of(3) as pool:
        pool.signal(0, "add")
        pool.signal(1, "fail")
        pool.begin(2, "fail_with", ValueError, "later")
        with pytest.raises(KeyError, match="no such desk"):
            pool.receive_all()
        assert pool.pending == [None, None, None]


def test_an_exception_while_making_leaves_no_process():
    def fail():
        raise LookupError("no such game")

    before = multiprocessing.active_children()
    with pytest.raises(LookupError, match="no such game") as caught:
        WorkerPool([list, fail], start_method="fork", name="env worker")
    assert "env worker 1 (process" in str(caught.value.__cause__)
    assert multiprocessing.active_children() == before


def test_an_exception_while_making_is_told_though_others_take_longer_than_its_process_lasts():
    ours, theirs = os.pipe()

    def fails():
        os.write(theirs, os.getpid().to_bytes(8))
        raise ValueError("no desk here")

    def waits():
        pid = int.from_bytes(os.read(ours, 8))
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        ended.poll(60_000)
        return Desk()

    with pytest.raises(ValueError, match="no desk here") as caught:
        WorkerPool([waits, fails], start_method="fork")
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    os.close(ours)
    os.close(theirs)


# death


def test_a_worker_killed_while_idle_is_named_at_the_next_call():
    with pool_of(2) as pool:
        os.kill(pool.pids[1], signal.SIGKILL)
        assert gone(pool.pids[1])
        with pytest.raises(WorkerDied, match=r"worker 1 .* was killed by SIGKILL"):
            pool.signal_all("add")
        assert pool.receive(0) == (3,)


def test_worker_died_names_the_call_of_a_killed_worker(gate):
    with pool_of(2, gate=gate) as pool:
        pool.signal(0, "wait")
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"worker 0 .* was killed by SIGKILL in 'wait'"):
            pool.receive(0)
        with pytest.raises(WorkerDied, match="in 'wait'"):
            pool.receive(0)


def test_a_death_ends_the_wait_for_all_at_once(gate):
    with pool_of(3, gate=gate) as pool:
        pool.signal_all("wait")
        os.kill(pool.pids[2], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="worker 2"):
            pool.receive_all()
        gate.set()


def test_the_death_of_an_idle_worker_ends_the_wait_for_others(gate):
    with pool_of(2, gate=gate) as pool:
        pool.signal(0, "wait")
        os.kill(pool.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"worker 1 .* while it waited for a call"):
            pool.receive_all()
        gate.set()


def test_an_exit_is_a_death_with_its_code():
    with pool_of(1) as pool, pytest.raises(WorkerDied, match="ended with exit code 5 in 'leave'"):
        pool.call(0, "leave", 5)


def test_death_is_seen_though_another_process_holds_the_channel(gate):
    def nest_by_hand():
        desk = Desk(3, gate)
        multiprocessing.get_context("fork").Process(target=gate.wait, args=(60,)).start()
        return desk

    with WorkerPool([nest_by_hand], start_method="fork", signals=Desk.signals) as pool:
        pool.signal(0, "wait")
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL in 'wait'"):
            pool.receive(0, timeout_s=20)
        gate.set()


def test_worker_died_says_so_where_a_worker_ends_while_it_starts():
    with pytest.raises(WorkerDied, match=r"killed by SIGKILL in 'starting'.*__main__"):
        WorkerPool([lambda: os.kill(os.getpid(), signal.SIGKILL)], start_method="fork")


def test_a_dead_worker_can_be_replaced():
    with pool_of(2) as pool:
        first = pool.pids[1]
        os.kill(first, signal.SIGKILL)
        assert gone(first)
        pool.restart(1)
        assert pool.pids[1] != first
        assert pool.call_all("add") == [3, 4]


# timeouts


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_revive_replaces_dead_and_silent_workers(how, gate):
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


def test_a_worker_that_is_busy_for_too_long_is_replaced(gate):
    with pool_of(2, gate=gate) as pool:
        pool.call(1, "add", 5)
        for index in range(2):
            pool.begin(index, "wait")
        assert pool.revive(timeout_s=0.1) == [0, 1]
        assert pool.call(1, "add") == 4  # a new one


def test_a_timeout_says_who_was_waited_for_and_how_long(gate):
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


def test_a_worker_that_takes_nothing_is_given_up(gate):
    with pool_of(1, gate=gate, timeout_s=0.05) as pool:
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match="does not take 'echo'"):
            pool.begin(0, "echo", bytes(10_000_000))
        pool.close(timeout_s=0.05)


# the end


def test_close_ends_all_processes_and_once_more_is_nothing():
    before = multiprocessing.active_children()
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = pool_of(2)
    pids = pool.pids
    pool.close()
    pool.close()
    assert all(gone(pid, 0) for pid in pids)
    assert multiprocessing.active_children() == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_close_lets_a_pending_call_finish(gate):
    pool = pool_of(1, gate=gate)
    pool.signal(0, "wait")
    gate.set()
    pool.close()
    assert pool.exit_codes == [0]


def test_close_kills_a_worker_that_does_not_leave(gate):
    pool = pool_of(2, gate=gate)
    pool.signal(1, "wait")
    pool.close(timeout_s=0.2)
    assert pool.exit_codes == [0, -signal.SIGKILL]


def test_an_exception_in_close_arrives_when_all_are_gone():
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


def test_close_names_the_call_that_keeps_a_worker_from_ending(gate, caplog, monkeypatch):
    monkeypatch.setattr("rl_workers.pool.SILENT_S", 0.1)
    pool = pool_of(1, gate=gate)
    pool.signal(0, "wait")
    pool.close(timeout_s=0.3)
    assert " to end 'wait': then it is killed." in caplog.text


def test_a_dropped_pool_warns_and_its_workers_leave():
    pool = pool_of(2)
    pids = pool.pids
    kept = [pool]
    del pool
    with pytest.warns(ResourceWarning, match="pool of 2 worker processes was dropped"):
        kept.clear()
    assert all(gone(pid) for pid in pids)
    multiprocessing.active_children()  # which takes their exit codes


def test_a_worker_may_hold_a_pool():
    with pool_of(2) as pool:
        inner = [pid for pids in pool.call_all("nest") for pid in pids]
        assert len({os.getpid(), *pool.pids, *inner}) == 5
    assert all(gone(pid) for pid in inner)


def test_workers_ignore_interrupts():
    with pool_of(1) as pool:
        assert pool.call(0, "interrupt_handler") == signal.SIG_IGN


# the end of the parent


class Office:
    """Works forever, and holds a pool of its own."""

    def __init__(self):
        self.inner = pool_of(1)

    def pids(self):
        return [os.getpid(), *self.inner.pids]

    def work(self):
        threading.Event().wait(60)


def hold(pipe, how):
    """The parent: three workers, of which one is at work, and one in a worker."""
    os.setsid()
    # a shell that starts its commands in the background lets them ignore interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pool = WorkerPool([Office, list, list], start_method="fork")
    try:
        pool.begin(1, "__len__")
        pids = pool.call(0, "pids") + pool.pids[1:]
        pool.receive(1)
        pool.begin(0, "work")
        pipe.send(pids)
        if how == "wait":
            pool.receive(0)
        pipe.recv()
    finally:
        pool.close(timeout_s=0.2)


@pytest.fixture
def parent():
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


def test_workers_end_with_a_killed_parent(parent):
    before = set(os.listdir("/dev/shm"))
    process, pids = parent("sleep")
    assert len(set(pids)) == 4
    process.kill()
    assert all(gone(pid) for pid in pids)
    assert set(os.listdir("/dev/shm")) <= before


def test_an_interrupt_of_all_reaches_the_parent_which_ends_all(parent, capfd):
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


def test_workers_end_with_a_program_that_does_not_close_the_pool():
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORGETFUL], stdout=subprocess.PIPE, text=True
    ) as process:
        pids = process.stdout.readline().split()
        assert process.wait(20) == 0
    assert len(pids) == 2
    assert all(gone(int(pid), 0) for pid in pids)


def test_a_worker_starts_after_operations_that_leave_modes_of_tensordict_unset():
    with set_lazy_legacy(True):
        pass
    assert os.environ["LAZY_LEGACY_OP"] == "None"  # as tensordict leaves it
    make = functools.partial(TensorDict, {"a": torch.zeros(3)}, [3])
    with WorkerPool([make], start_method="spawn") as pool:
        assert pool.call(0, "unsqueeze", 0).shape == (1, 3)
