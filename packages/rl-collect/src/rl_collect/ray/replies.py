"""Replies of actors that are to come: by Ray, or by a connection on one machine."""

from __future__ import annotations

import contextlib
import pickle
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rl_collect.multi.ending import ending_of
from rl_collect.multi.pickled import Pickled
from rl_collect.ray.blocks import Announced, Arrival
from rl_workers import Channel

_ENDING_S = 5.0
"""For Ray to know that an actor is gone whose connection has ended."""


class RayReply:
    """A reply that Ray brings, or that it announces."""

    def __init__(
        self,
        reference: Any,
        wake: Callable[[Any], None],
        *,
        met: Callable[[Any], Pickled] | None = None,
        end: socket.socket | None = None,
    ) -> None:
        self._future: Future[Any] = reference.future()
        self._future.add_done_callback(wake)
        self._met, self._end = met, end  # what a start comes to; where announced arrays arrive
        self._arrival: Arrival | None = None

    def fileno(self) -> int:
        """Where announced arrays arrive; else -1: the callback wakes who waits."""
        return -1 if self._arrival is None else self._arrival.fileno()

    def is_ready(self) -> bool:
        """Whether all of it has come, or cannot."""
        if not self._future.done():
            return False
        if self._arrival is None and self._end is not None and not self._future.exception():
            self._expect(self._future.result())
        return self._arrival is None or self._arrival.advance()

    def take(self, timeout_s: float) -> Pickled:
        """Wait for it; raises `TimeoutError`, or `ConnectionError` where it cannot come."""
        deadline = time.monotonic() + timeout_s
        result = result_of(self._future, timeout_s)
        self._expect(result)
        if self._arrival is not None:
            return self._arrival.take(max(deadline - time.monotonic(), 0))
        reply: Pickled = result if self._met is None else self._met(result)
        return reply

    def _expect(self, result: Any) -> None:
        if self._arrival is None and isinstance(result, Announced):
            assert self._end is not None
            self._arrival = Arrival(self._end, result)


class LocalCalls:
    """Calls to an actor on this machine, one at a time; it is the reply to the pending one, too."""

    # A message of Ray's takes most of a millisecond, one through a socket some microseconds.

    def __init__(self, end: socket.socket, ended: Future[Any]) -> None:
        self._end, self._channel, self._ended = end, Channel(end), ended
        self._is_cut = False

    def submit(self, request: bytes) -> LocalCalls:
        """Send a request; who is gone does not answer it."""
        try:
            self._channel.limit(None)
            self._channel.send(request)
        except BrokenPipeError:
            self._is_cut = True
        return self

    def fileno(self) -> int:
        """What to poll for the reply; -1 where none will come."""
        return -1 if self._is_cut else self._end.fileno()

    def is_ready(self) -> bool:
        """Whether the reply has come, or Ray knows how the actor ended."""
        if not self._is_cut:
            try:
                if self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return True
                self._is_cut = True
            except BlockingIOError:
                return False
            except ConnectionError:
                self._is_cut = True
        return self._ended.done()

    def take(self, timeout_s: float) -> Pickled:
        """Wait for the reply; raises `TimeoutError`, or `ConnectionError` where it cannot come."""
        try:
            self._channel.limit(timeout_s)
            reply: Pickled = pickle.loads(self._channel.receive())
        except EOFError:
            self._is_cut = True
            with contextlib.suppress(TimeoutError):
                result_of(self._ended, _ENDING_S)
            raise ConnectionError("its connection has ended") from None
        return reply

    def hang_up(self) -> Future[Any]:
        """Let the actor close its worker; what became of that."""
        if self._end.fileno() >= 0:
            self._end.shutdown(socket.SHUT_RDWR)
        return self._ended

    def close(self) -> None:
        """Close this end."""
        self._channel.close()


def result_of(future: Future[Any], timeout_s: float) -> Any:
    """What Ray brought; raises `TimeoutError`, or `ConnectionError` where it brings nothing."""
    from ray.exceptions import RayError

    try:
        return future.result(timeout_s)
    except RayError as error:  # the actor, its node, or the reply on it is gone
        raise ConnectionError(ending_of(error)) from error
