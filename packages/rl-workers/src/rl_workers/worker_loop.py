"""The main loop of a worker: it makes its object, and answers calls until it is told to leave."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_workers import lifeline
from rl_workers.channel import Channel
from rl_workers.exceptions import Failure

# the first byte of a request
SIGNAL, CALL, LEAVE = 0, 1, 2
# the first byte of a reply
DONE, RESULT, FAILED = 0, 1, 2

PARENT_ENDS: weakref.WeakSet[Channel] = weakref.WeakSet()
"""The ends that this process holds of the channels to its workers."""


@dataclass(frozen=True)
class WorkerConfig:
    """The settings of a new worker."""

    make: Callable[[], Any]  # makes the target: the object whose methods are called
    signals: tuple[str, ...]  # methods that take and return whole numbers only
    parent: int  # process id; the worker ends with it
    num_threads: int | None  # threads of torch; None leaves them as they are


def run(channel: Channel, config: WorkerConfig) -> None:
    """Run a worker to its end; the target of its process."""
    # it ends when it is told to leave, or when the channel ends because its parent is gone. A
    # forked worker has inherited its parent's ends of all channels: while it holds them open, no
    # other worker sees the end of file
    for end in list(PARENT_ENDS):
        end.close()
    try:
        lifeline.ignore_interrupts()
        lifeline.end_with_parent(config.parent)
        if config.num_threads is not None:
            limit_threads(config.num_threads)
        target = _make_target(channel, config.make)
        if target is not None:
            serve(channel, target, config.signals)
    except (EOFError, BrokenPipeError, ProcessLookupError):
        return  # no parent is left to report to


def serve(channel: Channel, target: Any, signals: Sequence[str]) -> None:
    """Answer calls until told to leave, then close the target."""
    methods = [getattr(target, name) for name in signals]
    close = getattr(target, "close", None) or (lambda: None)
    try:
        while (request := channel.receive())[0] != LEAVE:
            channel.send(answer(target, methods, request))
    except BaseException:
        close()
        raise
    channel.send(_attempt(close))


def answer(target: Any, methods: Sequence[Callable[..., Any]], request: bytes) -> bytes:
    """Carry out a request; returns the reply, which may be an exception (`SystemExit` is not)."""
    if request[0] == SIGNAL:
        return _attempt_signal(methods[request[1]], request)
    name, args, kwargs = pickle.loads(request[1:])
    return _attempt(lambda: getattr(target, name)(*args, **kwargs))


def request_signal(number: int, numbers: tuple[int, ...] = ()) -> bytes:
    """Encode a call of a method by its number: no pickle, 8 bytes for each whole number."""
    return struct.pack(f"<BB{len(numbers)}q", SIGNAL, number, *numbers)


def request_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Encode a call of a method by its name, with arguments that can be pickled."""
    return bytes([CALL]) + pickle.dumps((name, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)


def numbers_in(reply: bytes) -> tuple[int, ...]:
    """Decode the whole numbers in the reply to a signal."""
    return struct.unpack_from(f"<{(len(reply) - 1) // 8}q", reply, 1)


def limit_threads(count: int) -> None:
    """Give torch this many threads in this process, whether it is imported already or later."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
    else:  # a worker that does not need torch is spared the seconds of its import
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


def _make_target(channel: Channel, make: Callable[[], Any]) -> Any:
    """Make the target and report to the parent; None if it raised."""
    try:
        target = make()
    except Exception as error:
        channel.send(_failed(error))
        return None
    channel.send(bytes([DONE]))
    return target


def _attempt_signal(method: Callable[..., Any], request: bytes) -> bytes:
    try:
        if len(request) == 2:
            result = method()
        else:
            result = method(*struct.unpack_from(f"<{(len(request) - 2) // 8}q", request, 2))
        if result is None:
            return b"\0"  # DONE
        numbers = result if isinstance(result, tuple) else (result,)
        return struct.pack(f"<B{len(numbers)}q", DONE, *numbers)
    except Exception as error:
        return _failed(error)


def _attempt(function: Callable[[], Any]) -> bytes:
    try:
        result = function()
        if result is None:
            return bytes([DONE])
        return bytes([RESULT]) + pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> bytes:
    return bytes([FAILED]) + pickle.dumps(Failure.of(error))
