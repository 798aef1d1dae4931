"""The memory of rows: how it is allocated, written and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_replay.data.staged_row import Readers, StagedRows
from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages.layout import StorageLayout
from rl_slabs import Rows, Slab, Span
from rl_slabs.internals import Leaves, RowIndex, ValidatedLeaves, leaves_of

Cells: TypeAlias = TensorDictBase | Leaves | ValidatedLeaves
RowPlace: TypeAlias = slice | torch.Tensor
"""Rows from a first to a last one, without a step, or int64 positions `[n]`."""


class PlainRows:
    """Rows with every leaf as it came."""

    # A writer calls write, publishes the span, and lets the linker, if any, link older rows to it.

    linker: None = None  # of lossless rows, where it finds next observations in other rows

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.schema = rows.schema
        self.device = next(t.device for t in (rows.packed, *rows.arrays.values()) if t is not None)
        # the same calls, one frame less for each sample
        self.read, self.gather = rows.read, rows.gather

    def __len__(self) -> int:
        return len(self.rows)

    def write(
        self,
        rows: RowPlace,
        numbers: range,
        cells: Cells,
        back: NDArray[Any],
        *,
        proved: bool = False,
    ) -> None:
        """Copy a batch into the rows of a span; see `rl_slabs.Rows.write`."""
        del numbers, back, proved
        self.rows.write(rows, cells)

    def update(
        self, rows: RowIndex, numbers: torch.Tensor, cells: TensorDictBase, back: NDArray[Any]
    ) -> None:
        """Updates some leaves of rows in place."""
        del numbers, back
        self.rows.write(rows, cells, keys=list(leaves_of(cells)))

    def clear(self) -> None:
        """Does nothing: rows are overwritten in place."""

    def explain(self, live: int) -> dict[str, float]:
        """Bytes of a row."""
        del live
        return {"row_bytes": self.schema.nbytes}


RowStore: TypeAlias = PlainRows | LosslessRows
"""The rows of a storage: each leaf as it came, or observations once."""


class FewRows(Protocol):
    """Reads one row or a few into staging rows, and copies them into a store."""

    def take(self, data: Any) -> ValidatedLeaves | None:
        """Reads one row, a tensordict or a dict; None unless it fits."""
        ...

    def take_batch(self, data: TensorDict) -> ValidatedLeaves | None:
        """Reads a batch `[n]` of as many rows as there is room for; None unless they fit."""
        ...

    def write(self, span: Span, back: NDArray[np.int32]) -> None:
        """Copies the rows that were read last into the store."""
        ...


class PlainFewRows:
    """Few rows for `PlainRows`: `count` of them, one without a batch dimension unless given."""

    def __init__(self, rows: Rows, readers: Readers, count: int | None = None) -> None:
        with torch.inference_mode(mode=False):  # such tensors may be written in either mode
            apart = Rows.zeros(rows.schema, count or 1)
            live = apart.view()
        fields, place = rows.schema.fields, 0 if count is None else slice(None)
        packed = {f.path: live.get(f.key)[place] for f in fields if f.offset is not None}
        staged = StagedRows(readers, fields, packed, has_batch=count is not None)
        self.take, self.take_batch, self._leaves = staged.take, staged.take_batch, staged.leaves
        self._rows, columns = rows, rows.columns()
        self._large = [(f.key, columns[f.key]) for f in fields if f.offset is None]
        self._words = None if rows.packed is None else rows.packed.numpy()
        self._staged_words = None if apart.packed is None else apart.packed.numpy()

    def write(self, span: Span, back: NDArray[np.int32]) -> None:
        """Copies the rows that were read last into the store."""
        del back
        self._rows.touches += 1
        rows = span.rows if isinstance(span.rows, slice) else span.rows.numpy()
        if self._words is not None:
            self._words[rows] = self._staged_words
        for key, column in self._large:
            column[rows] = self._leaves[key]


Allocate: TypeAlias = Callable[[StorageLayout, int, NDArray[np.int32], torch.device], RowStore]
"""Memory for so many rows of a layout, whose links are in the array."""


def refuse_to_allocate(
    layout: StorageLayout, capacity: int, back: NDArray[np.int32], device: torch.device
) -> RowStore:
    """Raises: the rows are tensors of the caller's, and there is no other memory."""
    raise RuntimeError(
        f"the tensors of this storage hold other rows, not {list(layout.schema)} of which "
        f"there would be {capacity}: make another storage."
    )


def allocate(
    layout: StorageLayout, capacity: int, back: NDArray[np.int32], device: torch.device
) -> RowStore:
    """Rows on a device, with every leaf as it came or with observations once."""
    if layout.lossless is not None:
        return LosslessRows.allocate(layout.lossless, capacity, back=back, device=device)
    if device.type == "cpu":
        return PlainRows(Slab.private(layout.schema, capacity).rows)
    return PlainRows(Rows.zeros(layout.schema, capacity, device=device))
