"""Large arrays on their way from an actor on another machine, which Ray would bring slowly."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_collect.multi.pickled import Pickled
from rl_slabs.internals import aligned_bytes

_MIN_BYTES = 64 * 1024
_STALL_S = 5.0

Block = NDArray[np.uint8]


class Announced(NamedTuple):
    """An object whose arrays come by the connection."""

    head: bytes
    sizes: list[int]


class BlockSender:
    """The actor's side: arrays leave in the order of the replies that announce them."""

    # sent aside: the learner reads what it was told of, and it is told when the call has returned

    def __init__(self, end: socket.socket) -> None:
        self._end, self._thread = end, ThreadPoolExecutor(1)

    def send(self, reply: Pickled) -> Pickled | Announced:
        """What Ray is given to bring: the reply itself where it is short."""
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


def receive_blocks(end: socket.socket, reply: Pickled | Announced, timeout_s: float) -> Pickled:
    """Complete a reply; raises `ConnectionError` where its arrays stop coming."""
    if isinstance(reply, Pickled):
        return reply
    # aligned, so that rows are read where they are
    blocks = [aligned_bytes(size) for size in reply.sizes]
    end.settimeout(max(timeout_s, _STALL_S))
    try:
        for block in blocks:
            view = block.data
            while view:
                count = end.recv_into(view)
                if not count:
                    raise ConnectionError("its connection ended in the middle of a batch")
                view = view[count:]
    except TimeoutError as error:  # what follows could not be told from the rest
        raise ConnectionError("its connection stalled in the middle of a batch") from error
    return Pickled(reply.head, blocks)
