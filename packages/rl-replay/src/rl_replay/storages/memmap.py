"""Rows in a file, which may be larger than memory."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout.keys import NestedKey
from rl_replay.compact import CompactRows
from rl_replay.compact_layout import CompactLayout
from rl_replay.row_store import PlainRows, RowStore
from rl_replay.side_table import SideTable
from rl_replay.storages.lazy import LazyTensorStorage
from rl_slabs import RowSchema, Slab

ROWS_FILE = "rows.slab"
SIDE_FILE = "side.slab"


class LazyMemmapStorage(LazyTensorStorage):
    """Rows in a file that is made for `max_size` rows when the first are written.

    The disk space is taken in full then, so that a full disk is an error at once. Without a
    folder the file is a temporary one that is gone with the process, however that ends.

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

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        lossless: bool | Sequence[NestedKey] = False,
    ) -> None:
        if torch.device(device).type != "cpu":
            raise ValueError(
                f"files lie on the CPU, got device {device}: move samples with a transform."
            )
        super().__init__(max_size, ndim=ndim, lossless=lossless)
        self.scratch_dir = None if scratch_dir is None else Path(scratch_dir)
        self.existsok = existsok
        self._slab: Slab | None = None

    def flush(self) -> None:
        """Wait until every row is on the disk.

        Example:
            >>> LazyMemmapStorage(9).flush()
        """
        if self._slab is not None:
            self._slab.flush()

    def _allocate(self, schema: RowSchema, capacity: int, back: NDArray[np.int32]) -> RowStore:
        if self.lossless is False:
            return PlainRows(self._mapped(schema, capacity).rows)
        layout = CompactLayout(schema, None if self.lossless is True else self.lossless)
        rows = self._mapped(layout.stored, capacity).rows
        memory = None
        if self.scratch_dir is not None:
            path = self._path(SIDE_FILE)
            memory = SideTable.memory_for(layout.side, capacity, kind="mapped", path=path)
        side = SideTable(layout.side, capacity, memory=memory)
        return CompactRows(layout, rows, side, back=back)

    def _mapped(self, schema: RowSchema, capacity: int) -> Slab:
        path = self._path(ROWS_FILE)
        self._slab = Slab.mapped(schema, capacity, path)
        if self.scratch_dir is None:
            path.unlink()  # the open file lives on without its name
        return self._slab

    def _path(self, name: str) -> Path:
        if self.scratch_dir is None:
            return Path(tempfile.gettempdir(), f"rl-replay-{uuid.uuid4().hex}-{name}")
        self.scratch_dir.mkdir(parents=True, exist_ok=True)
        path = self.scratch_dir / name
        if self.existsok or self._slab is not None:  # the file is this storage's own
            path.unlink(missing_ok=True)
        return path
