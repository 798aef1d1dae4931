"""Storage in a file, which may be larger than memory."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from rl_replay.data.structure import Structure
from rl_replay.shared.files import SharedFiles
from rl_replay.storages.folder import (
    ROWS_FILE,
    SETTINGS_FILE,
    SIDE_FILE,
    TABLES_FILE,
    FolderStorage,
    write_settings,
)
from rl_replay.storages.lazy import LazyTensorStorage
from rl_slabs import RowSchema
from rl_tensordict import NestedKey


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
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     storage = LazyMemmapStorage(9, scratch_dir=folder)
        ...     _ = storage.extend(torch.arange(5))
        ...     sorted(os.listdir(folder))
        ...     LazyMemmapStorage.open(folder).read(torch.tensor([4]))
        ['rows.slab', 'tables.slab']
        tensor([4])
    """

    _lost = False

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
        if not isinstance(device, str | torch.device) or torch.device(device).type != "cpu":
            raise ValueError(
                f"files are on the CPU, got device {device}: move samples with a transform."
            )
        super().__init__(max_size, ndim=ndim, lossless=lossless, lanes=lanes)
        self.scratch_dir = None if scratch_dir is None else Path(scratch_dir)
        self.existsok = existsok
        self._share(lanes or 1)

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
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     first = LazyMemmapStorage(9, scratch_dir=folder)
            ...     _ = first.extend(torch.arange(5))
            ...     second = LazyMemmapStorage.open(folder)
            ...     _ = second.extend(torch.arange(3)), first.extend(torch.arange(2))
            ...     len(first), len(second)
            (9, 9)
        """
        found = FolderStorage.of(Path(scratch_dir))
        storage = cls(
            found.capacity, ndim=found.ndim, lossless=found.lossless or False, lanes=found.lanes
        )
        storage.arrange(found.dim_extend)
        storage.scratch_dir = Path(scratch_dir)
        storage._adopt(storage._over(found.files))
        storage.sync()
        return storage

    def arrange(self, dim_extend: int) -> None:
        """Say along which dimension of the data the storage grows; see `Storage.arrange`."""
        former = self.arrangement.dim_extend
        super().arrange(dim_extend)
        if dim_extend != former and self.store is None and self._sharing is not None:
            self._tell(self._sharing.ring.lanes)

    def flush(self) -> None:
        """Wait until every row is on the disk.

        Example:
            >>> LazyMemmapStorage(9).flush()
        """
        self.sync()
        if self._sharing is not None and self._sharing.slab is not None:
            self._sharing.slab.flush()

    def _new_files(self, lanes: int, suffix: str = "") -> SharedFiles:
        if self.scratch_dir is None:
            name = Path(tempfile.gettempdir(), f"rl-replay-{uuid.uuid4().hex}-{ROWS_FILE}")
            files = SharedFiles.on_disk(name, None, None, lanes)
            name.unlink()  # the open file lives on without its name
            return files
        self.scratch_dir.mkdir(parents=True, exist_ok=True)
        if not suffix and (self.existsok or self._sharing is not None):  # the latter are its own
            self._discard_files("")
        rows, side, tables = self._names(suffix)
        files = SharedFiles.on_disk(rows, side if self.lossless else None, tables, lanes)
        if not suffix:
            self._tell(lanes)
        return files

    def _tell(self, lanes: int) -> None:
        """Writes the settings of files without rows, for processes that open them."""
        if self.scratch_dir is not None:
            settings = {"capacity": self._asked, "lanes": lanes, "ndim": self.ndim}
            settings["dim_extend"] = self.arrangement.dim_extend
            write_settings(self.scratch_dir, {**settings, "lossless": self.lossless})

    def _names(self, suffix: str) -> list[Path]:
        folder, names = self.scratch_dir, (ROWS_FILE, SIDE_FILE, TABLES_FILE)
        return [] if folder is None else [folder / (name + suffix) for name in names]

    def _commit_files(self, suffix: str) -> None:
        for name, made in zip(self._names(""), self._names(suffix), strict=True):
            if made.exists():
                made.replace(name)

    def _discard_files(self, suffix: str) -> None:
        for name in self._names(suffix):
            name.unlink(missing_ok=True)
        if not suffix and self.scratch_dir is not None:
            (self.scratch_dir / SETTINGS_FILE).unlink(missing_ok=True)

    def _take_new(
        self, structure: Structure, schema: RowSchema, columns: torch.Size, *, instead: bool = False
    ) -> None:
        if self._lost:
            self._share(self.lanes or 1)
            self._lost = False
        try:
            super()._take_new(structure, schema, columns, instead=instead)
        except OSError:
            if self.store is None and self.takes_turns and self.scratch_dir is not None:
                self._discard_files("")  # leave no empty file that no process waits for
                self._lost = True
            raise
        if self.scratch_dir is not None:
            (self.scratch_dir / SETTINGS_FILE).unlink(missing_ok=True)
