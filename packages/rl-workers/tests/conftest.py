"""A pool of desks, whose calls wait for what a test sets."""

import os
import select
import signal
import sys
import threading

import cloudpickle
import pytest

from rl_workers import WorkerPool

# this file is no module that another process could import
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class _Desk:
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
        self.inner = _pool_of(1)
        return self.inner.pids

    def interrupt_handler(self):
        return signal.getsignal(signal.SIGINT)

    def close(self):
        if hasattr(self, "inner"):
            self.inner.close()


def _pool_of(count, *, start=3, gate=None, **options):
    options = {"start_method": "fork", "timeout_s": 20, "signals": _Desk.signals} | options
    return WorkerPool([lambda i=i: _Desk(start + i, gate) for i in range(count)], **options)


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


def _gone(pid, timeout_s=20):
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


class Office:
    """Works forever, and holds a pool of its own."""

    def __init__(self):
        self.inner = _pool_of(1)

    def pids(self):
        return [os.getpid(), *self.inner.pids]

    def work(self):
        threading.Event().wait(60)


def _hold(pipe, how):
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


@pytest.fixture(scope="session")
def desk():
    """Does what a test needs, and waits only for what the test sets."""
    return _Desk


@pytest.fixture(scope="session")
def gone():
    """Whether a process that need not be a child is gone, waiting for that."""
    return _gone


@pytest.fixture(scope="session")
def hold():
    """The parent: three workers, of which one is at work, and one in a worker."""
    return _hold


@pytest.fixture(scope="session")
def pool_of():
    return _pool_of
