"""Large arrays on their way from an actor on another machine, which Ray would bring slowly."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_collect.multi.pickled import Pickled
from rl_collect.ray.reception import wait_readable
from rl_slabs.internals import aligned_bytes

_MIN_BYTES = 64 * 1024
LOOK_S = 1.0
"""Between two looks at what may have stalled."""

_STALL_S = 30.0  # between two parts of a batch
_PATIENCE_S = 0.002  # for the next part of what flows
_TURN_S = 0.05  # before others have a turn

Block = NDArray[np.uint8]


class Announced(NamedTuple):
    """An object whose arrays come by the connection."""

    head: bytes
    sizes: list[int]


class BlockSender:
    """The actor's side: arrays leave in the order of the replies that announce them."""

    # sent by a thread: the learner reads a block once the call that announces it has returned

    def __init__(self, end: socket.socket) -> None:
        self._end, self._thread = end, ThreadPoolExecutor(1)

    def send(self, reply: Pickled) -> Pickled | Announced:
        """What Ray is given to bring: the reply itself if it is short."""
        sizes = [len(one) for one in reply.buffers]
        if sum(sizes) < _MIN_BYTES:
            return reply
        self._thread.submit(self._send, reply.buffers)
        return Announced(reply.head, sizes)

    def _send(self, blocks: Sequence[Block]) -> None:
        with contextlib.suppress(OSError):  # the learner has hung up
            for block in blocks:
                self._end.sendall(block.data)

    def close(self) -> None:
        """Hang up, also while something is sent."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._thread.shutdown()
        self._end.close()


class Arrival:
    """The arrays of a reply, received in parts: a slow sender does not block batches of others."""

    def __init__(self, end: socket.socket, announced: Announced) -> None:
        self._end, self._head = end, announced.head
        # aligned, so that rows are read without a copy
        self._blocks = [aligned_bytes(size) for size in announced.sizes]
        self._views = [block.data for block in self._blocks if len(block)]
        self._seen_s = time.monotonic()  # when something came
        self._failure: str | None = None

    def fileno(self) -> int:
        """What to poll for more; -1 where none will come."""
        return -1 if self._failure is not None else self._end.fileno()

    def advance(self) -> bool:
        """Take what is there, and what follows at once; whether all has come, or none will."""
        if self._failure is None and self._views:
            try:
                self._receive()
            except (BlockingIOError, TimeoutError):
                if time.monotonic() - self._seen_s > _STALL_S:  # the rest would be of no use
                    self._failure = (
                        f"nothing came for {_STALL_S:g} s by its connection to {_place(self._end)}"
                        ", in the middle of a batch: is that port open, its machine not cut off?"
                    )
            except OSError as error:
                self._failure = f"its connection broke in the middle of a batch: {error}"
        return self._failure is not None or not self._views

    def take(self, timeout_s: float) -> Pickled:
        """Wait for all; raises `TimeoutError`, or `ConnectionError` where no more comes."""
        deadline = time.monotonic() + timeout_s
        while not self.advance():
            left_s = min(deadline - time.monotonic(), LOOK_S)
            if left_s <= 0:
                raise TimeoutError
            wait_readable([self._end.fileno()], left_s)
        if self._failure is not None:
            raise ConnectionError(self._failure)
        return Pickled(self._head, self._blocks)

    def _receive(self) -> None:
        self._end.settimeout(0.0)
        first_s = None
        while self._views:
            count = self._end.recv_into(self._views[0])
            if not count:
                self._failure = "its connection ended in the middle of a batch"
                return
            self._views[0] = self._views[0][count:]
            if not self._views[0]:
                del self._views[0]
            self._seen_s = time.monotonic()
            if first_s is None:
                first_s = self._seen_s
                self._end.settimeout(_PATIENCE_S)
            elif self._seen_s - first_s > _TURN_S:
                return


def _place(end: socket.socket) -> str:
    name = end.getsockname()
    return ":".join(str(part) for part in name[:2]) if isinstance(name, tuple) else "this process"
