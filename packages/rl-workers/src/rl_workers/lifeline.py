"""A worker's bond to the process that started it: it never outlives it, however that ends."""

from __future__ import annotations

import os
import select
import signal
import threading

GRACE_S = 2.0
"""How long a worker may take to close its environments once its parent is gone."""


def end_with(parent: int, *, grace_s: float = GRACE_S) -> None:
    """Kill this process soon after process `parent` is gone.

    A thread waits on a descriptor of the parent, which the kernel makes readable at its end. The
    end of file on a pipe says as much only while no other process has inherited a copy of it;
    the parent-death signal (`PR_SET_PDEATHSIG`) is sent when the *thread* ends that started the
    child, which for a collector in a background thread is too early, and leaves no time to close
    what the worker itself has started.

    Code that never releases Python's global lock holds the thread up.

    Args:
        parent: The number of a process.
        grace_s: Between the parent's end and the kill; an idle worker sees the end of its channel
            and leaves by itself in that time.

    Raises:
        ProcessLookupError: There is no such process any more.

    Example:
        >>> end_with(os.getppid())  # doctest: +SKIP
    """
    descriptor = os.pidfd_open(parent)
    threading.Thread(
        target=_wait_and_kill, args=(descriptor, grace_s), name="lifeline", daemon=True
    ).start()


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to every process of a program, to the parent.

    It raises `KeyboardInterrupt` there, and closing the workers is its answer. Programs that the
    worker starts inherit this.

    Example:
        >>> before = signal.getsignal(signal.SIGINT)
        >>> ignore_interrupts()
        >>> signal.signal(signal.SIGINT, before)
        <Handlers.SIG_IGN: 1>
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait_and_kill(descriptor: int, grace_s: float) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    waiting.poll()
    threading.Event().wait(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)
