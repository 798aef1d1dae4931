"""The errors of workers: how they read, and that they travel."""

import pickle

import pytest

from rl_workers.errors import (
    CallOutOfOrder,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    WorkerTraceback,
    describe_exit,
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (-15, "was killed by SIGTERM"),
        (-63, "was killed by signal 63"),
        (None, "is gone"),
    ],
)
def test_describe_exit_names_code_or_signal(code, words):
    assert describe_exit(code) == words


def test_each_error_is_what_callers_would_catch():
    assert issubclass(WorkerTimeout, TimeoutError)
    assert all(issubclass(kind, RuntimeError) for kind in (WorkerDied, WorkerError, CallOutOfOrder))


def test_a_traceback_travels():
    error = WorkerTraceback("worker 0", "Traceback")
    assert str(pickle.loads(pickle.dumps(error))) == "worker 0:\n\nTraceback"
