"""Blocks of bytes for rows in transit; large ones are reused once nothing refers to them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_slabs.rows.rows import ALIGNMENT

LEAST_BYTES = 1 << 20
"""Smaller blocks come from memory that the allocator has touched already."""

MOST_FREE = 4
"""Free blocks that are kept."""

_free: dict[int, NDArray[np.uint8]] = {}
_leases: dict[int, weakref.ref[NDArray[np.uint8]]] = {}


def aligned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Bytes of any content that begin at a cache line."""
    # the kernel clears every page of new memory, which takes as long as copying a block
    memory = _take(nbytes) if nbytes >= LEAST_BYTES else None
    if memory is None:
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    block = memory[start : start + nbytes]
    return block if nbytes < LEAST_BYTES else _lease(block, memory)


def _take(nbytes: int) -> NDArray[np.uint8] | None:
    """A free block of exactly that size."""
    for name, memory in [*_free.items()]:
        # another thread may be quicker
        if memory.nbytes == nbytes + ALIGNMENT and _free.pop(name, None) is not None:
            return memory
    return None


def _lease(block: NDArray[np.uint8], memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The block, as an array whose end gives the memory back."""
    leased = np.asarray(_Leased(block))
    free, leases, name = _free, _leases, id(memory)

    def give_back(_: object) -> None:
        leases.pop(name, None)
        free[name] = memory
        if len(free) > MOST_FREE:
            free.pop(next(iter(free)), None)

    leases[name] = weakref.ref(leased, give_back)
    return leased


class _Leased:
    """Owns the bytes of an array, so that every view of that array keeps the array itself."""

    # numpy names the last array in a chain of views as the base of a new view

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self._block = block
        self.__array_interface__: dict[str, Any] = block.__array_interface__
