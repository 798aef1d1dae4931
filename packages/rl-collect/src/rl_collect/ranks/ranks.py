"""Workers in other ranks, as the learner sees them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from rl_collect.multi.ending import ending_of
from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import HostInfo
from rl_collect.ranks.group import RankGroup, machine
from rl_collect.ranks.messages import REPLY, REQUEST, Sending, receive
from rl_slabs import PackedRows
from rl_workers import Failure

CALL, CLOSE, START = "call", "close", "start"
"""What a worker is asked for."""

_ENDING_S = 5.0


class Ranks:
    """A `Transport` to all ranks but the first; a ticket is the number of a worker."""

    # A thread for each rank waits in gloo, which can wait neither for one of many nor for a while.

    advice = "Have all ranks come to this collector? Each constructs it, with the same arguments."

    def __init__(self, group: RankGroup) -> None:
        self.node = machine()
        self._group = group
        self._replies: list[list[Pickled]] = [[] for _ in range(len(self))]
        self._endings: list[str | None] = [None] * len(self)
        self._sending: list[Any] = [None] * len(self)
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._listen, args=(index,), daemon=True)
            for index in range(len(self))
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return self._group.size - 1

    def start(self, index: int) -> int:
        """Let the worker of a rank make itself."""
        return self._send(index, (START,))

    def submit(self, index: int, request: bytes, version: int, weights: list[Any]) -> int:
        """Call a method of the worker in a rank."""
        return self._send(index, (CALL, request, version, weights))

    def offer(self, weights: PackedRows) -> PackedRows:
        """Weights as they are: they go with the next call of each worker that lacks them."""
        return weights

    def take(self, ticket: int, timeout_s: float) -> Pickled:
        """Wait for a reply."""
        if not self.ready([ticket], timeout_s):
            raise TimeoutError
        if not self._replies[ticket]:
            raise ConnectionError(self._endings[ticket])
        return self._replies[ticket].pop(0)

    def ready(self, tickets: Sequence[int], timeout_s: float) -> list[int]:
        """Wait for one reply or end; all that are there then."""

        def found() -> list[int]:
            return [one for one in tickets if self._replies[one] or self._endings[one] is not None]

        with self._changed:
            self._changed.wait_for(found, timeout_s)
            return found()

    def route(self, index: int) -> str:
        """The process group carries calls, and rows from other machines."""
        del index
        return "gloo"

    def close(self, places: Sequence[HostInfo | None], timeout_s: float) -> Failure | None:
        """Close all workers; those on this machine that take too long are killed."""
        failure, deadline = None, time.monotonic() + timeout_s
        for index in range(len(self)):
            self._send(index, (CLOSE,))
        for index, place in enumerate(places):
            if place is None:
                continue
            self._threads[index].join(max(deadline - time.monotonic(), 0))
            if self._threads[index].is_alive() and place.node == self.node:
                os.kill(place.pid, signal.SIGKILL)
            elif self._replies[index]:
                last = self._replies[index][-1].open()
                failure = last if isinstance(last, Failure) else failure
        self._group.close()
        for thread in self._threads:  # a process must not end while one waits in gloo
            thread.join(_ENDING_S)
        return failure

    def _send(self, index: int, request: tuple[Any, ...]) -> int:
        if self._endings[index] is not None:
            return index
        message = Pickled.of(request)
        try:
            if self._sending[index] is not None:  # released before it was waited for, it is lost
                self._sending[index].wait()
                self._sending[index] = None
            self._sending[index] = Sending(message, index + 1, self._group.handle, REQUEST)
        except RuntimeError as error:
            self._note(index, ending=ending_of(error))
        return index

    def _listen(self, index: int) -> None:
        """Take the replies of a rank until it is gone."""
        try:
            while True:
                self._note(index, receive(index + 1, self._group.handle, REPLY))
        except RuntimeError as error:
            self._note(index, ending=ending_of(error))

    def _note(self, index: int, reply: Pickled | None = None, *, ending: str | None = None) -> None:
        with self._changed:
            if reply is not None:
                self._replies[index].append(reply)
            else:
                self._endings[index] = self._endings[index] or ending
            self._changed.notify_all()
