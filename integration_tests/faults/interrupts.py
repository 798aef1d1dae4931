"""Interrupts: an exception at a line of our sources, and at a line of what recovers from one."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

OURS = ("/rl_replay/", "/rl_slabs/", "/rl_transforms/", "/rl_layout/", "/rl_trees/")
NEVER = ("__exit__", "release", "close")  # calls that are not made to fail


class Interrupt(BaseException):
    """What Ctrl-C raises, but for its name."""


@contextlib.contextmanager
def interrupting(place: int) -> Iterator[list[str]]:
    """Raise at the line of ours that is executed as number `place`; -1 for none, to count them.

    A line of a `with` is passed over where it is left: an exception between the last line inside
    and the call of `__exit__` is no interrupt that there can be, only one of tracing. So is a
    `try:`, where nothing is done, and what a `finally:` calls first if that is a call of C, which
    Python makes before it looks for Ctrl-C: the release of the lock of `claim_lock` within a
    process, and the close of a descriptor.
    """
    seen: list[str] = []

    def noted(line: str) -> bool:
        seen.append(line)
        return len(seen) == place + 1

    sys.settrace(tracer(noted))
    try:
        yield seen
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def interrupting_twice(first: int, second: int) -> Iterator[list[str]]:
    """Raise in the call that is made as number `first`, and at a line of what recovers from it.

    The first one is of a function that one of ours calls, as where a tensor cannot be read or a
    file ends; so what ends a `with` or releases a lock is passed over. The second one is at line
    number `second` among our lines executed after it; -1 for none. What is yielded
    holds the call, then the lines.
    """
    seen: list[str] = []
    calls = 0

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls
        name = None if seen else our_call(frame, event, called)
        if name is not None:
            calls += 1
            if calls == first + 1:
                seen.append(name)
                raise Interrupt

    def noted(line: str) -> bool:
        if seen:
            seen.append(line)
        return len(seen) == second + 2 > 1

    sys.settrace(tracer(noted, fails=True))
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        sys.settrace(None)


def our_call(frame: FrameType, event: str, called: Any) -> str | None:
    """What a function of ours calls and where, as a profiler is told; None for other events."""
    caller = frame if event == "c_call" else frame.f_back
    if event not in ("call", "c_call") or caller is None or not is_ours(caller):
        return None
    name = called.__name__ if event == "c_call" else frame.f_code.co_name
    return None if name in NEVER else f"{name} called at {place_of(caller)}"


def is_ours(frame: FrameType) -> bool:
    """Whether the code of a frame is of the packages that write rows."""
    return any(part in frame.f_code.co_filename for part in OURS)


def place_of(frame: FrameType) -> str:
    """File and line, to be printed."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def tracer(
    noted: Callable[[str], bool], *, fails: bool = False
) -> Callable[[FrameType, str, Any], Any]:
    """What raises at the line of ours for which `noted` says so; see `interrupting`.

    Where the call `fails` before, the line of a `with` of several parts comes once for each part
    that is left, and not at all for others.
    """
    withs: set[tuple[FrameType, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal withs
        if not is_ours(frame):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and line.startswith("with "):
            left = (frame, frame.f_lineno) in withs
            entered = {(frame, frame.f_lineno)}
            withs = withs | entered if fails else withs ^ entered
            if left:
                return trace
        if line.startswith(("if held:", "_in_process.release()", "os.close(descriptor)", "try:")):
            return trace
        if event == "line" and noted(place_of(frame)):
            raise Interrupt
        return trace

    return trace
