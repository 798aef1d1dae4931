"""The rows of a checkpoint, as a loader hands them to a storage, and the row ids that they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.data.structure import Structure
from rl_replay.linking.links import Links
from rl_replay.linking.markers import MarkerColumns, MarkerKeys
from rl_replay.storages.row_store import RowStore
from rl_slabs import RowSchema, Window
from rl_slabs.internals import LANE_MASK, LANE_SHIFT

FillRows = Callable[[RowStore, NDArray[np.int32]], None]
"""Writes rows into a cleared store, and their links."""


class Move(NamedTuple):
    """Consecutive rows of one lane that are loaded into one lane."""

    rows: slice  # Their places among all rows of the dump
    former: range  # Their former row ids
    numbers: range  # Their row ids once they are loaded

    def places(self, each: int) -> list[slice]:
        """The positions of the rows: one slice, or two where the ring wraps."""
        lane, first = divmod(self.numbers.start, 1 << LANE_SHIFT)
        base, start = lane * each, first % each
        stop = min(start + len(self.numbers), each)
        rest = start + len(self.numbers) - stop
        found = [slice(base + start, base + stop)]
        return [*found, slice(base, base + rest)] if rest else found

    def positions(self, each: int) -> NDArray[np.int64]:
        """The position of each row, int64 `[n]`."""
        found = np.arange(self.numbers.start, self.numbers.stop)
        return (found & LANE_MASK) % each + (found >> LANE_SHIFT) * each

    def inside(self, back: NDArray[np.int32]) -> NDArray[np.int32]:
        """The links of its rows, without those to rows of other runs."""
        outside = back > np.arange(len(back))
        return np.where(outside, np.int32(0), back).astype(np.int32)


Destinations = Sequence[slice | int]
"""The positions of the rows of a dump, in its order; a number counts rows left out."""


class Moves(NamedTuple):
    """All rows of a dump, and their places in a store."""

    runs: Sequence[Move]  # The rows that are loaded, in the order of the dump
    rows: int  # Rows of the dump
    former: int  # Rows of each lane of the former storage
    each: int  # Rows of each lane of the store

    def places(self) -> Destinations:
        """The positions of the rows, in the order of the dump."""
        found: list[slice | int] = []
        begin = 0
        for run in self.runs:
            found += [run.rows.start - begin] if run.rows.start > begin else []
            found += run.places(self.each)
            begin = run.rows.stop
        return [*found, self.rows - begin] if self.rows > begin else found

    def positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Position and row id of each row of the dump, -1 if it is left out; int64 `[n]`."""
        positions, numbers = np.full((2, self.rows), -1)
        for run in self.runs:
            positions[run.rows] = run.positions(self.each)
            numbers[run.rows] = np.arange(run.numbers.start, run.numbers.stop)
        return positions, numbers

    def distances(self, away: NDArray[np.int32]) -> NDArray[np.int32]:
        """Distance in rows of the dump from each row to its next observation."""
        # a row names one of its own lane: round all lanes is round the lane as well
        return np.where(away > 0, away % np.int32(self.former), away)

    def renumbered(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The later row ids of rows, by their former ones."""
        former = np.array([run.former.start for run in self.runs])
        first = np.array([run.numbers.start for run in self.runs])
        counts = np.array([len(run.numbers) for run in self.runs])
        run = np.searchsorted(former, numbers, side="right") - 1
        inside = numbers - former[run]
        if ((run < 0) | (inside >= counts[run])).any():
            raise ValueError("overflow slots belong to rows that are not there: restore the dump.")
        found: NDArray[np.int64] = first[run] + inside
        return found


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
    # The rows that get other row ids or lanes; None if all keep theirs
    moved: Sequence[Move] | None = None
    joins: bool = False  # Whether rows move from several lanes into one, or from one into several

    @classmethod
    def of_state(cls, state: Mapping[str, Any], schema: RowSchema) -> Self:
        """The contents that a `state_dict` describes."""
        structure = Structure.from_plain(state["structure"]).require_classes()
        columns = torch.Size(state["columns"])
        window = Window(tuple(state["first"]), tuple(state["counts"]))
        kept = state["index"]
        index = kept and {
            name: torch.as_tensor(array, device="cpu").numpy() for name, array in kept.items()
        }
        order = state.get("order")
        return cls(structure, schema, columns, window, index, state["floor"], order)

    def in_room(self, kept: int, capacity: int, lanes: int) -> Self:
        """The same contents for a storage of another size or another number of lanes."""
        # In a larger one the rows of each lane begin at the first position of the lane, with later
        # numbers if they were elsewhere. If the number of lanes differs, or there is less room, the
        # rows fill lane after lane, the oldest lane first. The index is made anew.
        former = self.window
        if lanes != len(former.first) or capacity < kept:
            floor = self.floor or former.first
            runs = end_to_end(former, floor, self._by_age(), capacity, lanes)
            window = window_of(runs, lanes)
            return replace(
                self,
                window=window,
                index=None,
                floor=window.first,
                order=order_of(window, capacity // lanes),
                moved=runs,
                joins=True,
            )
        if capacity == kept:
            return self
        first = tuple(_next_start(number, capacity // lanes) for number in former.first)
        moves = zip(self.floor or former.first, first, former.first, strict=True)
        return replace(
            self,
            window=Window(first, former.counts),
            index=None,
            floor=tuple(number + after - before for number, after, before in moves),
            moved=lane_by_lane(former, first),
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


def destinations(array: torch.Tensor, places: Destinations) -> list[torch.Tensor]:
    """Memory for the rows of a dump, in its order; scratch memory for those left out."""
    return [
        array[place] if isinstance(place, slice) else array.new_empty((place, *array.shape[1:]))
        for place in places
    ]


def lane_by_lane(former: Window, first: Sequence[int]) -> list[Move]:
    """A run for each lane that has rows."""
    found, begin = [], 0
    for old, new, count in zip(former.first, first, former.counts, strict=True):
        if count:
            rows = slice(begin, begin + count)
            found.append(Move(rows, range(old, old + count), range(new, new + count)))
        begin += count
    return found


def end_to_end(
    former: Window, floor: Sequence[int], order: Sequence[int], capacity: int, lanes: int
) -> list[Move]:
    """Runs that fill lane after lane, those of the lane that was written longest ago first."""
    # `order` is the former lanes by age; rows below the floor of their lane are left out
    each, begins = capacity // lanes, np.cumsum((0, *former.counts)).tolist()
    ends = [low + count for low, count in zip(former.first, former.counts, strict=True)]
    # later than every former number, and where a lane begins
    first = -(-max(end & LANE_MASK for end in ends) // each) * each
    whole = [max(pair) for pair in zip(former.first, floor, strict=True)]
    count = sum(max(0, end - low) for low, end in zip(whole, ends, strict=True))
    if count > capacity:
        raise ValueError(
            f"{count} rows do not fit this storage of {capacity} in {lanes} lanes: make a larger "
            "one."
        )
    found, used = [], 0
    for old in order:
        low = whole[old]
        while low < ends[old]:
            lane, place = divmod(used, each)
            count = min(ends[old] - low, each - place)
            row, number = begins[old] + low - former.first[old], (lane << LANE_SHIFT) + first
            numbers = range(number + place, number + place + count)
            found.append(Move(slice(row, row + count), range(low, low + count), numbers))
            low, used = low + count, used + count
    return sorted(found, key=lambda run: run.rows.start)


def window_of(runs: Sequence[Move], lanes: int) -> Window:
    """The numbers of all rows from now on, for each lane."""
    first, counts = [lane << LANE_SHIFT for lane in range(lanes)], [0] * lanes
    for run in sorted(runs, key=lambda run: run.numbers.start):
        lane = run.numbers.start >> LANE_SHIFT
        first[lane] = first[lane] if counts[lane] else run.numbers.start
        counts[lane] += len(run.numbers)
    return Window(tuple(first), tuple(counts))


def order_of(window: Window, each: int) -> list[int]:
    """Lanes that were filled one after another by age: one with room is to be written first."""
    return sorted(range(len(window.counts)), key=lambda lane: window.counts[lane] == each)


def join(
    runs: Sequence[Move], store: RowStore, keys: MarkerKeys, back: NDArray[np.int32], lanes: int
) -> None:
    """Joins runs that are in one lane now, where the markers of rows say so."""
    each = len(store) // lanes
    for lane, group in groupby(sorted(runs, key=_number), lambda run: _number(run) >> LANE_SHIFT):
        inside = list(group)
        for run in inside:
            positions = run.positions(each)
            back[positions] = run.inside(back[positions])
        if len(inside) == 1 or not keys.numbered:
            continue
        base, count = lane * each, sum(len(run.numbers) for run in inside)
        cells = store.read(slice(base, base + count), keys=list(keys.columns))
        Links(each, keys, back=back[base : base + each]).revise(MarkerColumns.of(cells, keys), 0)
        if store.linker is None:
            continue
        for run in inside[1:]:
            store.linker.link_predecessors(run.numbers, back[run.positions(each)])


def _number(run: Move) -> int:
    return run.numbers.start


def _next_start(number: int, capacity: int) -> int:
    """The first row id from this one on whose position is the start of its lane."""
    place = number & LANE_MASK
    return number - place + -(-place // capacity) * capacity
