"""Processes that are killed at a chosen moment."""

from __future__ import annotations

import os
import signal

import pytest


@pytest.fixture(scope="session")
def killed_at():
    """Runs an action in a child that SIGKILLs itself before a call of some functions.

    It takes the number of the call, the functions as pairs of owner and name, and the action; it
    returns whether the child made so many calls.
    """

    def run(call, functions, action):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
            return os.WIFSIGNALED(status)
        left, status = [call], 1

        def counted(function):
            def wrapped(*args, **kwargs):
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return function(*args, **kwargs)

            return wrapped

        try:
            for owner, name in functions:
                setattr(owner, name, counted(getattr(owner, name)))
            action()
            status = 0
        finally:
            os._exit(status)

    return run
