"""What several test files of workers need."""

import contextlib
import os
import select
import signal
import sys

import pytest


class Trap:
    """A `pre_collect_hook` that lets a worker end, once of all, inside a function.

    It looks at what the worker runs from its second batch on, and changes nothing.

    Args:
        path: a file that says that somebody has died already.
        function: where to end.
        lines: how many of its lines are run before; at its call where 0.
    """

    def __init__(self, path, function, lines=0):
        self.path, self.code, self.left = path, function.__code__, lines
        self.batches = 0

    def __call__(self):
        self.batches += 1
        if self.batches == 2 and not self.path.exists():
            sys.settrace(self.trace)

    def trace(self, frame, event, argument):
        if frame.f_code is not self.code:
            return None
        if event in ("call", "line"):
            self.left -= 1
        if self.left < 0:
            with contextlib.suppress(FileExistsError):  # another worker was here before
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


@pytest.fixture
def trap(tmp_path):
    """Make a trap on a function."""
    return lambda function, lines=0: Trap(tmp_path / "died", function, lines)


def gone(pid):
    """Wait until a process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([descriptor], [], [], 30)
    os.close(descriptor)
    return bool(ready)


@pytest.fixture(name="gone")
def gone_fixture():
    """Wait for the end of a process."""
    return gone
