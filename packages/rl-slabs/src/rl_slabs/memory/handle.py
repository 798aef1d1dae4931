"""Handing an open file to another process, whatever start method made that process."""

from __future__ import annotations

import errno
import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any


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
