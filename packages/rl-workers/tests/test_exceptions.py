"""Exceptions that leave their process: the same type where that can be, their name always."""

import pickle
import threading

import pytest

from rl_workers.errors import WorkerDied, WorkerError, WorkerTraceback
from rl_workers.exceptions import Failure


class Coded(Exception):
    """Builds its message from its arguments."""

    def __init__(self, code):
        super().__init__(f"code {code}")


class Reduced(Coded):
    """Says how it is made again."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code

    def __reduce__(self):
        return type(self), (self.code,)


class Mute(Exception):
    """Has a `repr` that raises."""

    def __str__(self):
        raise RuntimeError


def sent(error):
    """The exception as it arrives in another process."""
    try:
        raise error
    except BaseException as raised:
        failure = Failure.of(raised)
    return pickle.loads(pickle.dumps(failure)).revive("worker 3, in 'step'")


@pytest.mark.parametrize(
    "error",
    [ValueError("odd"), KeyError(("a", "b")), OSError(28, "full", "a/b"), Reduced(5), WorkerDied()],
)
def test_the_type_and_the_message_are_kept(error):
    found = sent(error)
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_attributes_travel_and_those_that_cannot_are_left():
    error = ValueError("odd")
    error.number, error.lock = 3, threading.Lock()
    found = sent(error)
    assert type(found) is ValueError
    assert vars(found) == {"number": 3}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Coded(5), "Coded: code 5"),
        (ValueError(threading.Lock()), "builtins.ValueError: <unlocked"),
        (Mute(), "Mute: .its message cannot be shown"),
    ],
)
def test_exception_that_cannot_be_rebuilt_is_named(error, text):
    found = sent(error)
    assert type(found) is WorkerError
    assert str(found).startswith("worker 3, in 'step' raised ")
    assert text.replace(".its", "(its") in str(found)


def test_cause_of_an_exception_shows_worker_and_call():
    cause = sent(ValueError("odd")).__cause__
    assert isinstance(cause, WorkerTraceback)
    assert str(cause).startswith("worker 3, in 'step':\n\nTraceback")
    assert "raise error" in str(cause)


def test_a_type_that_is_gone_on_arrival_is_named():
    failure = Failure("somewhere", "Lost", "text", "Traceback", b"no pickle")
    assert str(failure.revive("worker 0")) == "worker 0 raised somewhere.Lost: text"
