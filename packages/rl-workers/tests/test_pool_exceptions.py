"""Exceptions in workers reach the caller as they were."""

import multiprocessing
import multiprocessing.util
import os
import select

import pytest

from rl_workers import WorkerPool
from rl_workers.errors import (
    WorkerError,
    WorkerTraceback,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Stubborn(Exception):
    """Says something else when it is made again from its arguments."""

    def __init__(self, code):
        super().__init__(f"code {code}")


def test_an_exception_keeps_its_type_and_brings_its_traceback(pool_of):
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
def test_an_exception_that_cannot_be_made_again_is_named(call, name, pool_of):
    with pool_of(1) as pool:
        with pytest.raises(WorkerError, match=name) as caught:
            pool.call(0, *call)
        assert "Traceback" in str(caught.value.__cause__)


def test_the_attributes_of_an_exception_travel(pool_of):
    error = OSError(28, "full", "a/b")
    error.detail = (3, 5)
    with pool_of(1) as pool, pytest.raises(OSError, match="full") as caught:
        pool.call(0, "raise_", error)
    assert (caught.value.errno, caught.value.filename, caught.value.detail) == (28, "a/b", (3, 5))


def test_a_reply_that_cannot_be_pickled_is_an_exception(pool_of):
    with pool_of(1) as pool, pytest.raises(TypeError, match="pickle"):
        pool.call(0, "lock")


def test_all_replies_are_taken_before_the_first_exception_is_raised(pool_of):
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


def test_an_exception_while_making_is_told_though_others_take_longer_than_its_process_lasts(desk):
    ours, theirs = os.pipe()

    def fails():
        os.write(theirs, os.getpid().to_bytes(8))
        raise ValueError("no desk here")

    def waits():
        pid = int.from_bytes(os.read(ours, 8))
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        ended.poll(60_000)
        return desk()

    with pytest.raises(ValueError, match="no desk here") as caught:
        WorkerPool([waits, fails], start_method="fork")
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    os.close(ours)
    os.close(theirs)
