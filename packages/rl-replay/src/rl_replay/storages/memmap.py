"""Storage in a file, which may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from rl_replay.shared.files import FileSource
from rl_replay.shared.session import SharedSession
from rl_replay.storages.folder import FolderFiles, StoredSettings, TemporaryFiles
from rl_replay.storages.lazy import LazyTensorStorage
from rl_replay.storages.storage_id import StorageId
from rl_tensordict import NestedKey
from rl_tensordict.arguments import as_device


class LazyMemmapStorage(LazyTensorStorage):
    """Rows in a file that is made for `max_size` rows when the first are written.

    The disk space is taken in full then, so that a full disk is an error at once. Without a
    folder the file is a temporary one that is gone with the last process that has it, however that
    ends. A buffer over it can be passed to other processes; they take turns to write. In a folder
    it is stored with the index, 136 bytes a row, and any process can `open` both, also later.

    Args:
        max_size: How many rows, those of all dimensions together; rounded up to whole columns.
        scratch_dir: The folder of the files; created if missing, and kept.
        device: Where samples are returned; only the CPU has files.
        ndim: Its dimensions.
        existsok: Write over the file of an earlier storage.
        lossless: As for `LazyTensorStorage`.
        lanes: As for `LazyTensorStorage`. Unless it or `shared=True` of the buffer says otherwise
            there is one, in which processes that have the buffer take turns to write.

    Raises:
        ValueError: Another device than the CPU, or a size out of range.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     storage = LazyMemmapStorage(9, scratch_dir=folder)
        ...     _ = storage.extend(torch.arange(5))
        ...     sorted(os.listdir(folder))
        ...     LazyMemmapStorage.open(folder).read(torch.tensor([4]))
        ['rows.slab', 'tables.slab']
        tensor([4])
    """

    session: SharedSession  # files are for all processes

    def __init__(  # noqa: PLR0913 - the arguments that the seed names, and `lossless`, `lanes`
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        lossless: bool | Sequence[NestedKey] = False,
        lanes: int | None = None,
    ) -> None:
        if as_device("device", device).type != "cpu":
            raise ValueError(
                f"files are on the CPU, got device {device}: move samples with a transform."
            )
        super().__init__(max_size, ndim=ndim, lossless=lossless, lanes=lanes)
        self.scratch_dir = None if scratch_dir is None else Path(scratch_dir)
        self.existsok = existsok
        self._share(lanes or 1)
        if self.scratch_dir is not None:
            self.identity = StorageId.of_folder(self.scratch_dir)

    @classmethod
    def open(cls, scratch_dir: str | os.PathLike[str]) -> Self:
        """The storage whose files are in a folder: the same rows, ring and trajectories.

        Processes that have it open see each other's rows, as if it had been passed to them. What
        it is, its size, dimensions and lanes, is read from the files; nothing in them is run. Any
        of them may write the first rows.

        Args:
            scratch_dir: The folder that another storage, in this process or another one, was given.

        Raises:
            FileNotFoundError: There are no such files.
            ValueError: The files are damaged, or their rows are of a class that this process does
                not know.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     first = LazyMemmapStorage(9, scratch_dir=folder)
            ...     _ = first.extend(torch.arange(5))
            ...     second = LazyMemmapStorage.open(folder)
            ...     _ = second.extend(torch.arange(3)), first.extend(torch.arange(2))
            ...     len(first), len(second)
            (9, 9)
        """
        folder = Path(scratch_dir)
        found = StoredSettings.of(folder)
        once = found.lossless or False
        storage = cls(found.capacity, ndim=found.ndim, lossless=once, lanes=found.lanes)
        storage.arrange(found.dim_extend)
        storage.scratch_dir = folder
        source = storage._source()
        storage.session = SharedSession(found.capacity, source, found.files, once)
        storage.identity = StorageId.of_folder(folder)
        storage.sync()
        return storage

    def arrange(self, dim_extend: int) -> None:
        """Say along which dimension of the data the storage grows; see `Storage.arrange`."""
        former = self.arrangement.dim_extend
        super().arrange(dim_extend)
        source = self.session.source
        is_new = dim_extend != former and self.session.table is None
        if is_new and isinstance(source, FolderFiles):
            source.tell(dim_extend=dim_extend)

    def flush(self) -> None:
        """Wait until every row is on the disk, with its links and the index.

        Example:
            >>> LazyMemmapStorage(9).flush()
        """
        table = self.session.sync()
        if table is not None:
            self.session.memory.flush(table.store)

    def _source(self) -> FileSource:
        if self.scratch_dir is None:
            return TemporaryFiles()
        settings = {
            "capacity": self.session.asked,
            "lanes": self.lanes or 1,
            "ndim": self.ndim,
            "dim_extend": self.arrangement.dim_extend,
            "lossless": self.lossless,
        }
        return FolderFiles(self.scratch_dir, settings, overwrite=self.existsok)
