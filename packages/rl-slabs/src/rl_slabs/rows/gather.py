"""Copying packed rows out of memory, in the way that takes least time."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.rows.selection import require_inside

PARALLEL_ITEMS = 32768
"""From so many items on torch gathers with several threads; below it numpy takes half its time."""

_HUGE = 1 << 21

# Python names it from 3.12 on; Linux has had this number on every machine that torch runs on
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def take_rows(words: NDArray[np.int64], index: int | slice | torch.Tensor) -> NDArray[np.int64]:
    """Copies packed rows."""
    if not isinstance(index, torch.Tensor):
        return words[index].copy()
    places = index.numpy()
    # numpy would count a row below 0 from the end; all bits together are negative if one of them is
    if np.bitwise_or.reduce(places) < 0:
        require_inside(index, len(words))
    try:
        return take_known_rows(words, places)
    except IndexError:
        require_inside(index, len(words))
        raise


def take_known_rows(words: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copies packed rows without checks for negative indices."""
    if places.size * words.shape[1] < PARALLEL_ITEMS:
        return words.take(places, 0)
    found = torch.from_numpy(words).index_select(0, torch.from_numpy(places))
    gathered: NDArray[np.int64] = found.numpy()
    return gathered


def zeroed(nbytes: int, *, promised: int = 0) -> NDArray[np.uint8]:
    """New private memory of zeros, all pages taken, on few large pages if there are any."""
    # Rows are read at random: with pages of 4 KiB the page table walk takes as long as
    # reading the row.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_NORESERVE if promised else 0)
    memory = mmap.mmap(-1, nbytes + promised, flags=flags)
    if nbytes >= _HUGE:
        use_large_pages(memory, 0, nbytes)
    array: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
    array[:nbytes].fill(0)  # pages are taken at the first touch: now rather than later
    return array


def use_large_pages(memory: mmap.mmap, start: int, stop: int) -> None:
    """Advises the kernel to back some memory with large pages."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and last > first:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(advice, first, last - first)
