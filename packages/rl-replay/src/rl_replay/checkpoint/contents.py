"""What a loader is about to put into a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.data.structure import Structure
from rl_replay.storages.row_store import RowStore
from rl_slabs import RowSchema, Window
from rl_slabs.internals import LANE_MASK

FillRows = Callable[[RowStore, NDArray[np.int32]], None]
"""Writes rows into a cleared store, and their links."""


@dataclass(frozen=True)
class Contents:
    """Rows that are to be loaded, all but their bytes."""

    structure: Structure  # What one row is to its owner
    schema: RowSchema  # The leaves of the rows as they came
    columns: torch.Size  # The storage's dimensions after the first
    window: Window  # The numbers of the rows, for each lane
    index: Mapping[str, NDArray[np.generic]] | None  # The state of the index; None to make it anew
    # For each lane the first row that is whole; the first one unless given
    floor: Sequence[int] | None = None
    # The lanes, the one that was written longest ago first; by number unless given
    order: Sequence[int] | None = None

    @classmethod
    def of_state(cls, state: Mapping[str, Any], schema: RowSchema) -> Self:
        """The contents that a `state_dict` describes."""
        structure = Structure.from_plain(state["structure"]).require_classes()
        columns = torch.Size(state["columns"])
        window = Window(tuple(state["first"]), tuple(state["counts"]))
        kept = state["index"]
        index = kept and {name: torch.as_tensor(array).numpy() for name, array in kept.items()}
        order = state.get("order")
        return cls(structure, schema, columns, window, index, state["floor"], order)

    def in_room(self, kept: int, capacity: int) -> Self:
        """The same contents for a storage that may be larger than the one that held them."""
        # There the rows of each lane begin at the first position of the lane, with later numbers if
        # they lay elsewhere, and the index is made anew.
        if capacity == kept:
            return self
        if capacity < kept:
            raise ValueError(
                f"these rows are of a storage of {kept} rows and this one has {capacity}: make one "
                "that is as large, or larger."
            )
        each = capacity // len(self.window.first)
        first = tuple(_next_start(number, each) for number in self.window.first)
        floor = [
            number + after - before
            for number, after, before in zip(
                self.floor or self.window.first, first, self.window.first, strict=True
            )
        ]
        window = Window(first, self.window.counts)
        return replace(self, window=window, index=None, floor=tuple(floor))

    def state(self, capacity: int) -> dict[str, Any]:
        """Everything but rows and schema, for a `state_dict`."""
        kept = self.index
        index = None if kept is None else {n: torch.from_numpy(kept[n]) for n in kept}
        return {
            "first": list(self.window.first),
            "counts": list(self.window.counts),
            "capacity": capacity,
            "columns": list(self.columns),
            "structure": self.structure.to_plain(),
            "index": index,
            "floor": list(self.floor or self.window.first),
            "order": list(self.order or range(len(self.window.first))),
        }

    def runs(self) -> Iterator[tuple[slice, range]]:
        """For each lane with rows where they are among all rows, and their numbers."""
        begin = 0
        for first, count in zip(self.window.first, self.window.counts, strict=True):
            if count:
                yield slice(begin, begin + count), range(first, first + count)
            begin += count


def _next_start(number: int, capacity: int) -> int:
    """The first number from this one on, in its lane, whose row lies first in the lane."""
    place = number & LANE_MASK
    return number - place + -(-place // capacity) * capacity
