"""The memory of rows: how they are written and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_slabs import Rows, RowSchema
from rl_slabs.internals import Leaves, RowIndex, ValidatedLeaves, leaves_of
from rl_tensordict.types import NestedKey

Cells: TypeAlias = TensorDictBase | Leaves | ValidatedLeaves


class RowStore(Protocol):
    """The rows of a storage, with each leaf as it came or with observations once."""

    # A writer calls write, publishes the span, and calls link_predecessors with its row ids.

    schema: RowSchema

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        ...

    @property
    def touches(self) -> int:
        """How many writes have changed a byte or were about to."""
        ...

    def repair(self, numbers: range, *, published: bool) -> None:
        """Repairs the store after an interrupted write of these rows."""
        ...

    def write(self, rows: RowIndex, numbers: range, cells: Cells, back: NDArray[Any]) -> None:
        """Writes a batch into a span; all checks precede the first changed byte."""
        ...

    def link_predecessors(self, numbers: range, back: NDArray[Any] | None = None) -> None:
        """Links that may be made only after the rows are published."""
        ...

    def read(
        self,
        rows: RowIndex,
        *,
        keys: Sequence[NestedKey] | None = None,
        contiguous: bool = False,
        device: torch.device | str | None = None,
    ) -> TensorDict:
        """A copy of some rows."""
        ...

    def gather(self, rows: torch.Tensor) -> TensorDict:
        """A copy of rows `[n]` that are known to exist."""
        ...

    def update(
        self, rows: RowIndex, numbers: torch.Tensor, cells: TensorDictBase, back: NDArray[Any]
    ) -> None:
        """Updates some leaves of rows in place."""
        ...

    def clear(self) -> None:
        """Releases what belongs to dropped rows."""
        ...

    def explain(self, live: int) -> dict[str, float]:
        """Bytes of a row, and of what comes with it."""
        ...


class PlainRows:
    """Rows with every leaf as it came."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.schema = rows.schema
        self.device = next(t.device for t in (rows.packed, *rows.arrays.values()) if t is not None)
        # the same calls, one frame less for each sample
        self.read, self.gather = rows.read, rows.gather

    def __len__(self) -> int:
        return len(self.rows)

    def write(self, rows: RowIndex, numbers: range, cells: Cells, back: NDArray[Any]) -> None:
        """Copy a batch into the rows of a span; see `rl_slabs.Rows.write`."""
        del numbers, back
        self.rows.write(rows, cells)

    def link_predecessors(self, numbers: range, back: NDArray[Any] | None = None) -> None:
        """Does nothing: no row depends on another."""

    @property
    def touches(self) -> int:
        """How many writes have changed a byte or were about to."""
        return self.rows.touches

    def repair(self, numbers: range, *, published: bool) -> None:
        """Does nothing: no row depends on another."""

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
