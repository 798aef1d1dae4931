"""The state of a buffer that each process has for itself."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref

from rl_replay.buffer.prefetch import Prefetch
from rl_replay.storages import Storage
from rl_replay.storages.session import Look


class ProcessLocal:
    """The lock and the prefetched batches of a buffer; new ones in each process that it reaches."""

    # A forked child has none of its parent's threads, and perhaps a lock that one of them held.

    def __init__(self, depth: int) -> None:
        self.depth = depth  # batches to prefetch, 0 for none
        self.renew()

    def renew(self) -> None:
        """Drops the locks, threads and batches of another process."""
        self.lock = threading.RLock()
        self.written = threading.Condition(self.lock)
        self.waiting = 0  # threads in `wait`
        self.prefetch = Prefetch(self.depth) if self.depth else None
        _here.add(self)

    def wait(self, storage: Storage, rows: int, timeout: float | None) -> bool:
        """Whether a storage has so many rows in time, written by any thread or process."""
        end = None if timeout is None else time.monotonic() + timeout

        def look() -> float | None:
            if len(storage) >= rows:
                return None
            return math.inf if end is None else end - time.monotonic()

        return storage.session.wait(look, self._wait_for_threads)

    def _wait_for_threads(self, look: Look) -> bool:
        """Whether `look` finds what it waits for in time; it looks again after each write here."""
        with self.written:
            self.waiting += 1
            try:
                while (left := look()) is not None:
                    if left <= 0:
                        return False
                    self.written.wait(None if left == math.inf else left)
                return True
            finally:
                self.waiting -= 1

    def wait_until(self, storage: Storage, rows: int, timeout: float | None) -> None:
        """Raises if a storage does not hold so many rows in time, or never can."""
        if rows > storage.max_size:
            raise ValueError(f"the buffer never holds {rows} rows, only {storage.max_size}.")
        if not self.wait(storage, rows, timeout):
            raise TimeoutError(
                f"waited {timeout} s for {rows} rows and got {len(storage)}: is anyone writing?"
            )

    def require_rows(self, storage: Storage, timeout: float) -> None:
        """Raises if the first rows of a storage do not come in time."""
        if not len(storage) and not self.wait(storage, 1, timeout):
            raise TimeoutError(
                f"waited {timeout:g} s for the first rows of an empty buffer and none came: is "
                "anyone writing? Give sample(timeout=seconds) more time, or set first_rows_timeout."
            )

    def __reduce__(self) -> tuple[type[ProcessLocal], tuple[int]]:
        return ProcessLocal, (self.depth,)


_here: weakref.WeakSet[ProcessLocal] = weakref.WeakSet()


def _renew_in_child() -> None:
    for local in list(_here):
        local.renew()


os.register_at_fork(after_in_child=_renew_in_child)
