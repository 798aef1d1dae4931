"""The end of a worker with its parent: no worker outlives the process that started it."""

from __future__ import annotations

import os
import select
import signal
import threading

GRACE_S = 2.0
"""Time for an idle worker to see the end of its channel and to close its object."""


def end_with_parent(parent: int, *, grace_s: float = GRACE_S) -> None:
    """Kill this process `grace_s` after process `parent` is gone."""
    # a pidfd becomes readable at the end of its process, however many copies of it there are. The
    # end of file on a pipe comes only after every process that inherited a copy has closed it; and
    # the parent-death signal (PR_SET_PDEATHSIG) is sent when the *thread* ends that started the
    # child, too early for a collector in a background thread, and leaves no time to close anything.
    # Code that never releases Python's global lock delays the thread
    descriptor = os.pidfd_open(parent)
    threading.Thread(
        target=_wait_and_kill, args=(descriptor, grace_s), name="lifeline", daemon=True
    ).start()


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to every process of a program, to the parent."""
    # the parent gets KeyboardInterrupt and closes its workers. Programs started here inherit this
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait_and_kill(descriptor: int, grace_s: float) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    waiting.poll()
    threading.Event().wait(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)
