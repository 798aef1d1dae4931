"""A worker's bond to the process that started it: it never outlives it, however that ends."""

from __future__ import annotations

import os
import select
import signal
import threading

GRACE_S = 2.0
"""How long a worker may take to close its environments once its parent is gone."""


def end_with(parent: int, *, grace_s: float = GRACE_S) -> None:
    """Kill this process soon after process `parent` is gone."""
    descriptor = os.pidfd_open(parent)
    threading.Thread(
        target=_wait_and_kill, args=(descriptor, grace_s), name="lifeline", daemon=True
    ).start()


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to every process of a program, to the parent."""
    # It raises KeyboardInterrupt there, and closing the workers is its answer. Programs that the
    # worker starts inherit this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait_and_kill(descriptor: int, grace_s: float) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    waiting.poll()
    threading.Event().wait(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)
