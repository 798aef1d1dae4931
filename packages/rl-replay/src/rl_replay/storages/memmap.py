"""Rows in a file, which may be larger than memory."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import torch

from rl_layout.keys import NestedKey
from rl_replay.sharing.files import SharedFiles
from rl_replay.storages.lazy import LazyTensorStorage
from rl_replay.structure import Structure
from rl_slabs import RowSchema

ROWS_FILE = "rows.slab"
SIDE_FILE = "side.slab"


class LazyMemmapStorage(LazyTensorStorage):
    """Rows in a file that is made for `max_size` rows when the first are written.

    The disk space is taken in full then, so that a full disk is an error at once. Without a
    folder the file is a temporary one that is gone with the last process that has it, however that
    ends. A buffer over it can be passed to other processes; they take turns to write.

    Args:
        max_size: How many rows, those of all dimensions together; rounded up to whole columns.
        scratch_dir: The folder of the file; it is made where it is missing, and the file stays.
        device: Where samples are handed out; only the CPU has files.
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
        ...     os.listdir(folder)
        ['rows.slab']
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
        if torch.device(device).type != "cpu":
            raise ValueError(
                f"files lie on the CPU, got device {device}: move samples with a transform."
            )
        super().__init__(max_size, ndim=ndim, lossless=lossless, lanes=lanes)
        self.scratch_dir = None if scratch_dir is None else Path(scratch_dir)
        self.existsok = existsok
        self._share(lanes or 1)

    def flush(self) -> None:
        """Wait until every row is on the disk.

        Example:
            >>> LazyMemmapStorage(9).flush()
        """
        self.look()
        if self._sharing is not None and self._sharing.slab is not None:
            self._sharing.slab.flush()

    def _files(self, lanes: int, mark: str = "") -> SharedFiles:
        if self.scratch_dir is None:
            name = Path(tempfile.gettempdir(), f"rl-replay-{uuid.uuid4().hex}-{ROWS_FILE}")
            files = SharedFiles.on_disk(name, None, lanes)
            name.unlink()  # the open file lives on without its name
            return files
        self.scratch_dir.mkdir(parents=True, exist_ok=True)
        if not mark and (self.existsok or self._sharing is not None):  # the latter are its own
            self._drop("")
        rows, side = self._names(mark)
        return SharedFiles.on_disk(rows, side if self.lossless else None, lanes)

    def _names(self, mark: str) -> list[Path]:
        folder = self.scratch_dir
        return [] if folder is None else [folder / (n + mark) for n in (ROWS_FILE, SIDE_FILE)]

    def _name(self, mark: str) -> None:
        for name, made in zip(self._names(""), self._names(mark), strict=True):
            if made.exists():
                made.replace(name)

    def _drop(self, mark: str) -> None:
        for name in self._names(mark):
            name.unlink(missing_ok=True)

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
                self._drop("")  # leave no empty file behind that nobody waits for
                self._lost = True
            raise
