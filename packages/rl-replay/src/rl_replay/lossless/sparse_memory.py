"""Memory that is reserved in full and secured piece by piece: private, shared or in a file."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from rl_slabs import LazyFile
from rl_slabs.internals import MAP_NORESERVE, FileHandle, take_piece, use_large_pages

Kind = Literal["private", "shared", "mapped"]


class SparseMemory:
    """Bytes that use memory only after they are secured and touched."""

    # A plain sparse file costs nothing until a page of it is touched, and a full disk then ends the
    # process. Here a process secures bytes before it touches them for the first time, and hears
    # of a full disk or memory by an error.

    def __init__(
        self, nbytes: int, kind: Kind = "private", path: str | os.PathLike[str] | None = None
    ) -> None:
        if (kind == "mapped") != (path is not None):
            raise ValueError(f"a path belongs to a mapped memory: got {kind!r} and path={path!r}.")
        if kind == "private":
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            self._attach(kind, mmap.mmap(-1, nbytes, flags=flags), -1)
            return
        if path is None:
            descriptor = os.memfd_create("rl-replay", os.MFD_CLOEXEC)
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
        try:
            os.ftruncate(descriptor, nbytes)
            self._attach(kind, mmap.mmap(descriptor, nbytes), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def in_file(cls, nbytes: int, file: LazyFile) -> Self:
        """Memory in a file that several processes have open; any of them may be the first."""
        descriptor = file.duplicate()
        try:
            os.ftruncate(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        return cls._over(descriptor, file.kind, nbytes)

    def secure(self, start: int, stop: int, wanted: str) -> None:
        """Secures bytes `[start, stop)` for use; raises if memory or disk is full."""
        take_piece(self._descriptor, start, stop, wanted, on_disk=self.kind == "mapped")

    def touch(self, start: int, stop: int, wanted: str) -> None:
        """`secure`, and touches private pages now, as large pages if available."""
        self.secure(start, stop, wanted)
        use_large_pages(self._memory, start, stop)
        self.array[start:stop].fill(0)

    def __len__(self) -> int:
        return len(self.array)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "private":
            raise TypeError(
                "a private memory stays in its process: make a shared or mapped one to hand it "
                "to another."
            )
        return _opened, (FileHandle(self._descriptor), self.kind, len(self))

    def _attach(self, kind: Kind, memory: mmap.mmap, descriptor: int) -> None:
        self.kind: Kind = kind
        self._memory = memory
        if kind == "mapped":
            memory.madvise(mmap.MADV_RANDOM)  # slots are read as rows are: anywhere
        # numpy holds on to the mmap, so that no view of it ever points nowhere
        self.array: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        self._descriptor = descriptor
        if descriptor >= 0:
            weakref.finalize(self, os.close, descriptor)

    @classmethod
    def _over(cls, descriptor: int, kind: Kind, nbytes: int) -> Self:
        found = cls.__new__(cls)
        try:
            found._attach(kind, mmap.mmap(descriptor, nbytes), descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return found


def _opened(handle: FileHandle, kind: Kind, nbytes: int) -> SparseMemory:
    return SparseMemory._over(handle.open(), kind, nbytes)
