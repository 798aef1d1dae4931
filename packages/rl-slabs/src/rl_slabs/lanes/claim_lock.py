"""The one lock: held for microseconds while a lane is claimed, never while rows move."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_POLL_S = 0.0005

# A flock belongs to the open file description, which fork duplicates: a child forked in the middle
# of a claim would hold the lock on after its parent was killed. So within a process this lock
# comes first, and forking waits for it. Reentrant, so that a fork in a claim's own thread (from a
# signal handler, say) does not wait for itself.
_in_process = threading.RLock()
os.register_at_fork(
    before=_in_process.acquire,
    after_in_parent=_in_process.release,
    after_in_child=_in_process.release,
)


@contextmanager
def claim_lock(descriptor: int | None, timeout_s: float) -> Iterator[None]:
    """Excludes all other threads and processes that claim lanes of one slab."""
    # The file is opened anew, so that threads and forked children, who would share a description
    # and with it the lock, exclude each other too. The kernel frees the lock of a process that is
    # killed. Never lockf, which is lost when any descriptor of the file is closed, and never a
    # multiprocessing lock, which stays locked.
    held = False
    try:
        held = _in_process.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))
        if not held:
            raise TimeoutError(f"another thread of this process claims a lane since {timeout_s} s.")
        if descriptor is None:
            yield
            return
        # a file object, which is closed whatever line an interrupt comes at
        with open(f"/proc/self/fd/{descriptor}", "rb+", buffering=0) as own:
            _wait(own.fileno(), timeout_s)
            yield
            # explicitly, since closing frees it only with the last duplicate
            fcntl.flock(own, fcntl.LOCK_UN)
    finally:
        if held:
            _in_process.release()


def _wait(descriptor: int, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise TimeoutError(
                    f"the claim lock was not free for {timeout_s} s: a process stopped in the "
                    "middle of a claim holds it, or a child of one that was killed there "
                    f"(inode {os.fstat(descriptor).st_ino} in /proc/locks). End or continue it."
                ) from None
            time.sleep(_POLL_S)
