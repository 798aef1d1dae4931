"""A file that starts empty and is filled once, handed from process to process."""

from __future__ import annotations

import errno
import os
import weakref
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, Literal, Self

from rl_slabs.lanes.claim_lock import claim_lock
from rl_slabs.memory.allocation import require_memory, take_space
from rl_slabs.regular_file import open_regular, path_name


class FileHandle:
    """An open file that is passed to another process; picklable only for that."""

    # As an argument of a process that is being spawned (by spawn or forkserver) the descriptor
    # is inherited and works even if the sender is gone when it is used. Through a queue
    # or a pipe the receiver opens the sender's descriptor by way of /proc, so the sender must still
    # hold it then. A forked process needs no handle: it has what its parent has.

    def __init__(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._identity = (stat.st_dev, stat.st_ino)
        self._inherited: Any = None

    def open(self) -> int:
        """A descriptor of this process for the file; the caller closes it."""
        if self._inherited is not None:
            descriptor: int = self._inherited.detach()
            os.set_inheritable(descriptor, False)
            return descriptor
        try:
            found = os.open(f"/proc/{self._pid}/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._gone() from error
        stat = os.fstat(found)
        # numbers of processes and of descriptors are used again: the file itself must be the same
        if (stat.st_dev, stat.st_ino) == self._identity:
            return found
        os.close(found)
        raise self._gone()

    def _gone(self) -> FileNotFoundError:
        return FileNotFoundError(
            errno.ENOENT,
            f"the memory that process {self._pid} handed over is gone: it closed the slab, ended, "
            "or lives in another container. Keep the slab open there until the receiver has it, "
            "pass it among the arguments of the process when that is started, or open a mapped "
            "slab by its path",
        )

    def __getstate__(self) -> dict[str, Any]:
        spawning = get_spawning_popen() is not None
        return self.__dict__ | {"_inherited": DupFd(self._descriptor) if spawning else None}


FileKind = Literal["shared", "mapped"]

MAGIC_BYTES = 8
"""The first bytes of a file, written last: without them it has no content."""


class LazyFile:
    """An open file that is empty until `fill` gave it its size and its head.

    It is handed to another process by passing it, as a slab is; see `FileHandle`.

    Args:
        descriptor: The open file, from here on this object's to close.
        kind: "shared" for a memory file, "mapped" for one on a disk.
        path: Its name, if it has one.

    Attributes:
        kind: "shared" or "mapped".
        path: Its name, if it has one.

    Example:
        >>> with LazyFile.shared("an example") as file:
        ...     file.fill(b"RL-TEST, and what follows", 4096, "an example"), file.filled
        (True, True)
    """

    def __init__(self, descriptor: int, kind: FileKind, path: str | None) -> None:
        self.kind: FileKind = kind
        self.path = path
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def shared(cls, name: str) -> Self:
        """A memory file; its name is for people only.

        Example:
            >>> LazyFile.shared("an example").filled
            False
        """
        return cls(os.memfd_create(name, os.MFD_CLOEXEC), "shared", None)

    @classmethod
    def mapped(cls, path: str | os.PathLike[str]) -> Self:
        """A new file.

        Raises:
            OSError: It is there already, or cannot be made.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     LazyFile.mapped(f"{folder}/a").kind
            'mapped'
        """
        name = path_name(path)
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise FileExistsError(
                error.errno, f"{name} is there already: open it, or remove it", name
            ) from None
        return cls(descriptor, "mapped", os.path.abspath(name))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """A file that another process made with `mapped`.

        Raises:
            OSError: No such file, or no permission.
            ValueError: It is no regular file.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     first = LazyFile.mapped(f"{folder}/a")
            ...     LazyFile.open(f"{folder}/a").filled
            False
        """
        name = path_name(path)
        return cls(open_regular(name, os.O_RDWR), "mapped", os.path.abspath(name))

    @property
    def filled(self) -> bool:
        """Whether it has content, all of it."""
        return len(os.pread(self.fileno(), MAGIC_BYTES, 0).strip(b"\0")) > 0

    def fill(
        self,
        head: bytes,
        nbytes: int,
        wanted: str,
        *,
        promised: int = 0,
        sparse: bool = False,
        timeout_s: float = 5.0,
    ) -> bool:
        """Give the file its size, zeroes and a head, unless somebody did already.

        A process that is killed in between leaves a file without content, which the next one fills.

        Args:
            head: What it begins with; the first 8 bytes are not all zero.
            nbytes: Its size.
            wanted: What it is for, for messages.
            promised: Further bytes after them; see `rl_slabs.memory.allocation.take_space`.
            sparse: Take memory when it is touched, not now; only for a memory file.
            timeout_s: How long to wait for another who is filling it.

        Returns:
            Whether it was filled by this call.

        Raises:
            OSError: Too little memory or disk.
            TimeoutError: A process that was stopped while it filled the file blocks the others.
        """
        with claim_lock(self.fileno(), timeout_s):
            if self.filled:
                return False
            if self.kind == "shared":
                require_memory(nbytes, wanted)
            os.ftruncate(self._descriptor, 0)  # what somebody left who was killed here
            if sparse and self.kind == "shared":
                os.ftruncate(self._descriptor, nbytes)
            else:
                take_space(self._descriptor, nbytes, wanted, promised=promised)
            os.pwrite(self._descriptor, head[MAGIC_BYTES:], MAGIC_BYTES)
            os.pwrite(self._descriptor, head[:MAGIC_BYTES], 0)
        return True

    def fileno(self) -> int:
        """The descriptor.

        Raises:
            ValueError: The file is closed.
        """
        if not self.is_open:
            raise ValueError("this file is closed: keep it open while others may fill it.")
        return self._descriptor

    @property
    def is_open(self) -> bool:
        """Whether nobody closed it here."""
        return self._close.alive

    def close(self) -> None:
        """Let go of the file; once more is nothing.

        Example:
            >>> file = LazyFile.shared("an example")
            >>> file.close(), file.close()
            (None, None)
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _attach, (FileHandle(self.fileno()), self.kind, self.path)


def _attach(handle: FileHandle, kind: FileKind, path: str | None) -> LazyFile:
    return LazyFile(handle.open(), kind, path)
