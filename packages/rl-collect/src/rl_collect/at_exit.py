"""Collectors that run in the background when their process ends."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Shutable(Protocol):
    """What can be shut down."""

    def shutdown(self) -> None:
        """Stop."""


_started: weakref.WeakKeyDictionary[Shutable, int] = weakref.WeakKeyDictionary()


def shut_at_exit(collector: Shutable) -> None:
    """Shut a collector down before the interpreter ends, in this process only."""
    # A thread that is in torch when the interpreter goes away aborts the process.
    if not _started:  # after multiprocessing's own, so ahead of it at the end
        atexit.unregister(_shut_all)
        atexit.register(_shut_all)
    _started[collector] = os.getpid()


def forget(collector: Shutable) -> None:
    """Leave a collector alone: it was shut down."""
    _started.pop(collector, None)


def _shut_all() -> None:
    failure: Exception | None = None
    for collector, process in list(_started.items()):
        if process == os.getpid():
            try:
                collector.shutdown()
            except Exception as error:  # told after the last one
                failure = error
    if failure is not None:
        raise failure
