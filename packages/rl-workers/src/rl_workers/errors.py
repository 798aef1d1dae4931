"""The errors of workers, one class for each meaning."""

from __future__ import annotations

import signal


class WorkerError(RuntimeError):
    """A worker raised an exception that cannot be rebuilt in this process; the message names it.

    Example:
        >>> raise WorkerError("worker 1 raised game.Crash: the disk is full")
        Traceback (most recent call last):
        rl_workers.errors.WorkerError: worker 1 raised game.Crash: the disk is full
    """


class WorkerDied(RuntimeError):
    """The process of a worker is gone.

    Example:
        >>> issubclass(WorkerDied, RuntimeError)
        True
    """


class WorkerTimeout(TimeoutError):
    """A worker did not answer in time. It may still run, and its reply may still come.

    Example:
        >>> issubclass(WorkerTimeout, TimeoutError)
        True
    """


class CallOutOfOrder(RuntimeError):
    """A call to a worker that has one pending, a reply awaited where none is, or a closed pool.

    Example:
        >>> issubclass(CallOutOfOrder, RuntimeError)
        True
    """


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of the exception that is raised for it here.

    Example:
        >>> print(WorkerTraceback("worker 1, in 'step'", "Traceback ..."))
        worker 1, in 'step':
        <BLANKLINE>
        Traceback ...
    """

    def __init__(self, who: str, traceback: str) -> None:
        super().__init__(who, traceback)

    def __str__(self) -> str:
        who, traceback = self.args
        return f"{who}:\n\n{traceback}"


def describe_exit(exit_code: int | None) -> str:
    """Describe how a process ended, as part of a message."""
    # as multiprocessing.Process.exitcode has it: negative for a signal, None if unknown
    if exit_code is None:
        return "is gone"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
