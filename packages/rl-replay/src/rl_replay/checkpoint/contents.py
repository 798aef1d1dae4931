"""The rows of a checkpoint, as a loader hands them to a storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.checkpoint.moves import Move, end_to_end, lane_by_lane, order_of, window_of
from rl_replay.data.structure import Structure
from rl_replay.storages.row_store import RowStore
from rl_slabs import RowSchema, Window
from rl_slabs.internals import LANE_MASK

FillRows = Callable[[RowStore, NDArray[np.int32]], None]
"""Writes rows into a cleared store, and their links."""


@dataclass(frozen=True)
class Contents:
    """Description of the rows to be loaded: everything but their bytes."""

    structure: Structure  # The caller's form of a row
    schema: RowSchema  # The leaves of the rows as they were given
    columns: torch.Size  # The storage's dimensions after the first
    window: Window  # The row ids, for each lane
    index: Mapping[str, NDArray[np.generic]] | None  # The trajectory index; None to rebuild it
    # For each lane the first complete row; its first one unless given
    floor: Sequence[int] | None = None
    # The lanes, the one that was written longest ago first; by number unless given
    order: Sequence[int] | None = None
    # The rows that get other row ids or lanes; None where all keep theirs
    moved: Sequence[Move] | None = None
    joins: bool = False  # Whether rows move from several lanes into one, or from one into several

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

    def in_room(self, kept: int, capacity: int, lanes: int) -> Self:
        """The same contents for a storage of another size or another number of lanes."""
        # In a larger one the rows of each lane begin at the first position of the lane, with later
        # numbers if they were elsewhere. If the number of lanes differs, the rows fill lane after
        # lane, the oldest lane first. The index is made anew.
        former = self.window
        if lanes != len(former.first):
            floor = self.floor or former.first
            laid = end_to_end(former, floor, self._by_age(), capacity, lanes)
            return self._moved(laid, capacity, lanes)
        if capacity == kept:
            return self
        if capacity < kept:
            raise ValueError(
                f"these rows are of a storage of {kept} rows and this one has {capacity}: make one "
                "that is as large, or larger."
            )
        first = tuple(_next_start(number, capacity // lanes) for number in former.first)
        moves = zip(self.floor or former.first, first, former.first, strict=True)
        return replace(
            self,
            window=Window(first, former.counts),
            index=None,
            floor=tuple(number + after - before for number, after, before in moves),
            moved=lane_by_lane(former, first),
        )

    def _moved(self, runs: Sequence[Move], capacity: int, lanes: int) -> Self:
        window = window_of(runs, lanes)
        order = order_of(window, capacity // lanes)
        floor = window.first
        return replace(
            self, window=window, index=None, floor=floor, order=order, moved=runs, joins=True
        )

    def _by_age(self) -> Sequence[int]:
        lanes = range(len(self.window.first))
        return lanes if self.order is None or sorted(self.order) != list(lanes) else self.order

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

    def runs(self) -> Sequence[Move]:
        """The rows in the order of the checkpoint, each run with its row ids."""
        return lane_by_lane(self.window, self.window.first) if self.moved is None else self.moved


def _next_start(number: int, capacity: int) -> int:
    """The first row id from this one on whose position is the start of its lane."""
    place = number & LANE_MASK
    return number - place + -(-place // capacity) * capacity
