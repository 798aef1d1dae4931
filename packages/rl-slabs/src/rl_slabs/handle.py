"""Handing an open file to another process, whatever start method made that process."""

from __future__ import annotations

import errno
import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any


class FileHandle:
    """An open file on its way to another process, picklable for that journey only.

    As an argument of a process that is being spawned (by spawn or forkserver) the descriptor
    travels with the process and works even if the sender is gone when it is used. Through a queue
    or a pipe the receiver opens the sender's descriptor by way of `/proc`, so the sender must
    still hold it then; a file with a path is found by that path too. A forked process needs no
    handle: it has what its parent has.

    Args:
        descriptor: The open file; it stays the sender's.
        path: Where the file lies, if it has a name.

    Example:
        >>> import pickle, tempfile
        >>> with tempfile.TemporaryFile() as file:
        ...     handle = pickle.loads(pickle.dumps(FileHandle(file.fileno())))
        ...     descriptor = handle.open()
        ...     os.fstat(descriptor).st_ino == os.fstat(file.fileno()).st_ino
        True
        >>> os.close(descriptor)
    """

    def __init__(self, descriptor: int, path: str | None = None) -> None:
        stat = os.fstat(descriptor)
        self._descriptor = descriptor
        self._path = path
        self._pid = os.getpid()
        self._identity = (stat.st_dev, stat.st_ino)
        self._inherited: Any = None

    def open(self) -> int:
        """A descriptor of this process for the file; the caller closes it.

        Raises:
            FileNotFoundError: The sender has closed the file or ended.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryFile() as file:
            ...     os.close(FileHandle(file.fileno()).open())
        """
        if self._inherited is not None:
            descriptor: int = self._inherited.detach()
            os.set_inheritable(descriptor, False)
            return descriptor
        for place in (f"/proc/{self._pid}/fd/{self._descriptor}", self._path):
            found = None if place is None else self._try(place)
            if found is not None:
                return found
        raise FileNotFoundError(
            errno.ENOENT,
            f"the memory that process {self._pid} handed over is gone: it closed the slab, ended, "
            "or lives in another container. Keep the slab open there until the receiver has it, "
            "or pass it among the arguments of the process when that is started",
        )

    def _try(self, place: str) -> int | None:
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        stat = os.fstat(descriptor)
        # numbers of processes and of descriptors are used again: the file itself must be the same
        if (stat.st_dev, stat.st_ino) == self._identity:
            return descriptor
        os.close(descriptor)
        return None

    def __getstate__(self) -> dict[str, Any]:
        spawning = get_spawning_popen() is not None
        return self.__dict__ | {"_inherited": DupFd(self._descriptor) if spawning else None}
