"""What a buffer has in each process for itself, and how it goes from one to another."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

from rl_replay.buffer.prefetch import Prefetch
from rl_replay.storages import Storage

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01


class InProcess:
    """The lock, the threads and the batches prefetched of a buffer, made anew in each process.

    A forked child has none of its parent's threads, and perhaps a lock that one of them held.

    Args:
        depth: Batches to make ahead; 0 for none.
    """

    _storage: Storage

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._begin_in_process()

    def _begin_in_process(self) -> None:
        self._lock = threading.RLock()
        self._written = threading.Condition(self._lock)
        self._waiting = 0
        self._prefetch = Prefetch(self._depth) if self._depth else None
        _here.add(self)

    def _wait(self, rows: int, timeout: float | None) -> bool:
        """Whether so many rows came in time, written by whichever process."""
        if not self._storage.is_shared:
            with self._written:
                self._waiting += 1
                try:
                    return self._written.wait_for(lambda: len(self._storage) >= rows, timeout)
                finally:
                    self._waiting -= 1
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE_S
        while len(self._storage) < rows:
            if end is not None and time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return True

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self._storage.is_shared:
            raise TypeError(
                "this buffer is not shared and stays in its process: make it with shared=True to "
                "hand it to another one, or use dumps() and loads()."
            )
        return object.__reduce_ex__(self, protocol)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_in_process()


_OWN = ("_lock", "_written", "_waiting", "_prefetch")
_here: weakref.WeakSet[InProcess] = weakref.WeakSet()


def _begin_in_child() -> None:
    for buffer in list(_here):
        buffer._begin_in_process()
        buffer._storage.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
