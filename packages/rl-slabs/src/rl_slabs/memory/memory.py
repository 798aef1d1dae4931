"""One block of bytes: of this process, of all that are given it, or of a file."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from rl_slabs.memory.allocation import take_piece
from rl_slabs.memory.lazy_file import LazyFile

Kind = Literal["private", "shared", "mapped"]

_HUGE = 1 << 21

# Python names it from 3.12 on; Linux has had this number on every machine that torch runs on
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Memory:
    """Bytes that begin as zeros, all of them there or secured piece by piece."""

    # A plain sparse file costs nothing until a page of it is touched, and a full disk then ends the
    # process. Here a process secures promised bytes before it touches them for the first time, and
    # hears of a full disk or memory by an error.

    def __init__(self, block: mmap.mmap, file: LazyFile | None = None) -> None:
        self.kind: Kind = "private" if file is None else file.kind
        self.file = file
        self._block: mmap.mmap | None = block
        if self.kind == "mapped":
            # rows are read anywhere: what the kernel reads ahead of them is not wanted
            block.madvise(mmap.MADV_RANDOM)
        # numpy holds on to the mmap, so that no view of it ever points nowhere
        self.array: NDArray[np.uint8] = np.frombuffer(block, dtype=np.uint8)

    @classmethod
    def private(cls, nbytes: int, *, promised: int = 0) -> Self:
        """Memory of this process: some bytes taken now, and more to be secured."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NORESERVE if promised else 0)
        memory = cls(mmap.mmap(-1, nbytes + promised, flags=flags))
        memory._touch(0, nbytes)
        return memory

    @classmethod
    def over(cls, file: LazyFile, nbytes: int) -> Self:
        """The memory of a file, which has this size."""
        return cls(mmap.mmap(file.fileno(), nbytes), file)

    @classmethod
    def promised_in(cls, file: LazyFile, nbytes: int) -> Self:
        """The memory of a file of which nothing is secured yet, or what others secured."""
        os.ftruncate(file.fileno(), nbytes)
        return cls.over(file, nbytes)

    def secure(self, start: int, stop: int, wanted: str) -> None:
        """Secures bytes `[start, stop)` for use; raises if memory or disk is full."""
        descriptor = -1 if self.file is None else self.file.fileno()
        take_piece(descriptor, start, stop, wanted, on_disk=self.kind == "mapped")

    def touch(self, start: int, stop: int, wanted: str) -> None:
        """`secure`, and takes the pages now, as large ones if available."""
        self.secure(start, stop, wanted)
        self._touch(start, stop)

    def _touch(self, start: int, stop: int) -> None:
        # Rows are read at random: with pages of 4 KiB the page table walk takes as long as
        # reading the row.
        size = mmap.PAGESIZE
        first, last = -(-start // size) * size, stop // size * size
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is not None and self._block is not None and last - first >= _HUGE:
            with contextlib.suppress(OSError):  # a kernel without them
                self._block.madvise(advice, first, last - first)
        self.array[start:stop].fill(0)  # pages are taken at the first touch

    def flush(self) -> None:
        """Waits until a mapped file is on the disk; nothing for the other kinds."""
        if self._block is not None and self.file is not None and self.kind == "mapped":
            self._block.flush()
            os.fsync(self.file.fileno())

    @contextlib.contextmanager
    def read_ahead(self) -> Iterator[None]:
        """Lets the kernel read ahead of a pass over a mapped file."""
        block = self._block if self.kind == "mapped" else None
        if block is not None:
            block.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            if block is not None:
                block.madvise(mmap.MADV_RANDOM)

    def close(self) -> None:
        """Lets go of the bytes and of their file; views that are still held stay."""
        self._block, self.array = None, self.array[:0].copy()
        if self.file is not None:
            self.file.close()

    def __len__(self) -> int:
        return len(self.array)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.file is None:
            raise TypeError(
                "a private memory stays in its process: make a shared or mapped one to hand it "
                "to another."
            )
        return type(self).over, (self.file, len(self))
