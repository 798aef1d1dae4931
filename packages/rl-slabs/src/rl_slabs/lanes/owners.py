"""Which thread of the machine holds a lane, and whether it is still there."""

from __future__ import annotations

import os
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROCESSES = "/proc"
"""Where the threads of every process are looked up."""

OWN_THREADS = "/proc/self/task"
"""Where only the threads of this process are."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

OwnerState = Literal["free", "held", "gone", "elsewhere"]


class _Known(threading.local):
    """The owner that each thread is, since asking the system takes longer than a small write."""

    owner: Owner | None = None

    def forget(self) -> None:
        """A forked child is another thread, which may have the same number in another container."""
        self.owner = None


_known = _Known()
os.register_at_fork(after_in_child=_known.forget)


@dataclass(frozen=True)
class Owner:
    """Identity of a thread that no later thread can have."""

    # A thread rather than a process holds a lane, because each has its number and start time in
    # /proc just as a process has: a thread that ended is seen without its help.

    thread: int  # native thread id; 0 if unowned
    started: int  # start time in ticks since boot: thread ids are reused, the pair is not
    place: int  # boot id (high 31 bits) and pid namespace (low 32)

    @classmethod
    def of_this_thread(cls) -> Owner:
        """The calling thread."""
        thread = threading.get_native_id()
        known = _known.owner
        if known is not None and known.thread == thread:
            return known
        started = start_time(thread, OWN_THREADS)
        if started is None or started != start_time(thread, PROCESSES):
            raise RuntimeError(
                f"thread {thread} does not find itself in /proc: lanes need the /proc of the "
                "container that the process runs in. Mount it."
            )
        _known.owner = cls(thread, started, _place())
        return _known.owner

    def standing(
        self, *, beat_ns: int, stale_after_s: float | None, threads: str = PROCESSES
    ) -> OwnerState:
        """Whether the thread still runs: "free", "held", "gone", or "elsewhere" if unknowable."""
        if self.thread == 0:
            return "free"
        here = _place()
        if self.place >> 32 != here >> 32:
            return "gone"  # this file was last used before a reboot, or on another machine
        if self.place != here:
            silent_s = (time.monotonic_ns() - beat_ns) / 1e9
            return "gone" if stale_after_s is not None and silent_s > stale_after_s else "elsewhere"
        return "held" if start_time(self.thread, threads) == self.started else "gone"


def start_time(thread: int, threads: str) -> int | None:
    """When a thread started, in ticks since boot; None if it does not run any more."""
    # A killed process that was not reaped keeps its entry, as a zombie: it does not run.
    try:
        line = Path(threads, str(thread), "stat").read_text()
    except OSError:
        return None
    # the name in parentheses may hold spaces and parentheses itself
    state, *fields = line.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _place() -> int:
    # not remembered: a child may be forked into another namespace
    try:
        boot = zlib.crc32(_BOOT_ID.read_bytes()) & 0x7FFFFFFF
    except OSError:
        boot = 0
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino & 0xFFFFFFFF
    except OSError:
        namespace = 0
    return boot << 32 | namespace
