"""Reading rows whose next observation lies in another row or in the side table."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout.keys import NEXT_MISSING
from rl_replay.compact_layout import SUCCESSOR, CompactLayout, Key, Path
from rl_replay.side_table import SideTable
from rl_slabs import Field, Rows
from rl_slabs.dtypes import carrier
from rl_slabs.unpacking import unpacking
from rl_slabs.writing import as_cells

Array = NDArray[Any]

Found = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | NDArray[np.int32]]
"""Packed rows `[n, words]`, large leaves `[n, *shape]`, and what the rows name `[n]`."""

_ENOUGH_ROWS = 16
"""A batch of fewer rows says little about how far apart neighbours lie."""


class Run(NamedTuple):
    """Bytes that lie together in a stored row and in a side slot.

    Attributes:
        size: Bytes of the widest integers that they can be moved as.
        row: Where they lie in a row, counted in such integers.
        slot: Where they lie in a slot.
    """

    size: int
    row: slice
    slot: slice


class Large(NamedTuple):
    """A wanted leaf with an array of its own.

    Attributes:
        path: The path of the array among the stored rows.
        name: Its name in the side table where the next observation is wanted, else None.
        dtype: Its dtype.
    """

    path: Path
    name: str | None
    dtype: torch.dtype


class Plan:
    """What reading some leaves needs to know, worked out once.

    Attributes:
        wide: Whether a packed leaf of the next observation is wanted.
        large: The wanted leaves with own arrays.
        marks: Whether a mark for missing next observations is wanted.
        plain: The stored leaves wanted, where nothing else is, else None.
        unpack: From gathered rows to a TensorDict; `unpack_contiguous` copies.

    Args:
        layout: How the rows are stored.
        keys: The leaves wanted; all unless given.
    """

    def __init__(self, layout: CompactLayout, keys: Sequence[Key] | None) -> None:
        fields = layout.schema.fields if keys is None else layout.schema.select(keys)
        pairs = {pair.next: pair for pair in layout.pairs}
        virtual = NEXT_MISSING if not layout.has_mark else None
        wanted = [field for field in fields if field.path != virtual]
        nexts = [field for field in wanted if field.path in pairs]
        self.marks = len(wanted) < len(fields)
        self.observes = bool(nexts)
        self.wide = any(field.offset is not None for field in nexts)
        self.plain = None
        if not nexts and not self.marks:
            self.plain = [field.path for field in wanted]
        width = layout.stored.row_bytes
        packed, large = [], []
        for field in wanted:
            pair = pairs.get(field.path)
            place = layout.stored[pair.root if pair else field.path]
            if place.offset is None:
                large.append(field)
                continue
            offset = place.offset + (width if pair else 0)
            packed.append(Field(field.path, field.dtype, field.shape, offset))
        self.large = [
            Large(pairs[f.path].root, pairs[f.path].name, f.dtype)
            if f.path in pairs
            else Large(f.path, None, f.dtype)
            for f in large
        ]
        packed.sort(key=lambda field: field.offset or 0)
        total = width * (1 + self.wide)
        self.unpack = unpacking([*packed, *large], total)
        self.unpack_contiguous = unpacking([*packed, *large], total, contiguous=True)


class Gather:
    """Copies rows and their next observations out of their places.

    On the CPU a row and its likely neighbour come in one read of a view that overlaps itself;
    only rows whose next observation lies elsewhere are mended. How far away neighbours mostly lie
    is learned from what is read, so that interleaved environments are as quick as one.

    Args:
        layout: How the rows are stored.
        rows: The stored rows.
        side: The side table.
    """

    def __init__(self, layout: CompactLayout, rows: Rows, side: SideTable) -> None:
        if rows.packed is None:
            raise ValueError("stored rows have a packed leaf that names their successor.")
        self._rows, self._side, self._count = rows, side, len(rows)
        self._packed = rows.packed
        self._width = layout.stored.row_bytes // 8
        self._place = (layout.stored[SUCCESSOR].offset or 0) // 4
        self._runs = _runs(layout)
        # of a row and its neighbour side by side, and of a slot
        self._columns = [
            (
                f"i{size}",
                np.arange(row.start, row.stop) + layout.stored.row_bytes // size,
                np.arange(slot.start, slot.stop),
            )
            for size, row, slot in self._runs
        ]
        self._void = _void(layout, rows.packed.device)
        # the last row's neighbour would lie outside: index_select refuses it and `_pairs` reads it
        self._window = self._packed.as_strided((self._count - 1, 2 * self._width), (self._width, 1))
        self._distance = 1
        self._arrays = {
            path: array.view(carrier(array.dtype)) for path, array in rows.arrays.items()
        }

    def on_cpu(self, plan: Plan, index: torch.Tensor, given: NDArray[np.int32] | None) -> Found:
        """The packed rows, the large leaves, and where each next observation was found.

        Args:
            plan: The leaves wanted.
            index: Positions `[n]`, int64.
            given: Where to look for the next observations, `[n]`; as the rows say unless given.

        Returns:
            int64 `[n, words]`, one `[n, *shape]` for each large leaf, and int32 `[n]`.
        """
        found = self._neighbours(index) if plan.wide else self._packed.index_select(0, index)
        words = found.numpy()
        distance = words.view(np.int32)[:, self._place] if given is None else given
        if plan.wide:
            odd = (distance != self._distance).nonzero()[0]
            if odd.size:
                self._mend(words, index.numpy(), distance, odd)
        arrays = self._large_on_cpu(plan, index, distance) if plan.large else []
        return found, arrays, distance

    def on_device(
        self, plan: Plan, index: torch.Tensor, given: torch.Tensor | None = None
    ) -> Found:
        """What `on_cpu` does, by tensor operations alone: for rows on any device.

        Args:
            plan: The leaves wanted.
            index: Positions `[n]`, int64, on the device of the rows.
            given: Where to look for the next observations, `[n]`; as the rows say unless given.
        """
        own = self._packed.index_select(0, index)
        distance = own.view(torch.int32)[:, self._place] if given is None else given
        away = distance.long()
        nexts = torch.where(away > 0, (index + away) % self._count, index)
        beside = (away < 0).nonzero().squeeze(1)
        slots = -1 - away[beside]
        nowhere = (away == 0).nonzero().squeeze(1)
        if plan.wide:
            following = self._packed.index_select(0, nexts)
            packed = self._side.rows.packed
            if packed is not None and self._void.packed is not None:
                self._fill(following, beside, packed.index_select(0, slots))
                self._fill(following, nowhere, self._void.packed.expand(len(nowhere), -1))
            own = torch.cat([own, following], 1)
        arrays = []
        for path, name, dtype in plan.large:
            array = self._arrays[path].index_select(0, index if name is None else nexts)
            if name is not None:
                slot, void = self._slots_of(name), self._void_of(name)
                array.index_copy_(0, beside, slot.index_select(0, slots))
                array.index_copy_(0, nowhere, void.expand(len(nowhere), *void.shape[1:]))
            arrays.append(array.view(dtype))
        return own, arrays, distance

    def _neighbours(self, index: torch.Tensor) -> torch.Tensor:
        if self._distance == 1 and self._count > 1:
            try:
                return self._window.index_select(0, index)
            except IndexError:
                pass  # the last row is among them, or a row that is none
        return self._pairs(index.numpy())

    def _pairs(self, index: NDArray[np.int64]) -> torch.Tensor:
        pairs = np.empty((len(index), 2), dtype=np.int64)
        pairs[:, 0] = index
        # counted from the end, so that what lies beyond it is at the start again
        np.add(index, self._distance - self._count, out=pairs[:, 1])
        if len(index) and np.minimum.reduce(index) < 0:
            raise IndexError(f"row {index.min()} is below 0")
        words = self._packed.numpy().take(pairs, axis=0)
        return torch.from_numpy(words.reshape(len(index), 2 * self._width))

    def _mend(
        self,
        words: NDArray[np.int64],
        index: NDArray[np.int64],
        distance: NDArray[np.int32],
        odd: NDArray[np.int64],
    ) -> None:
        away = distance[odd]
        beside = away < 0
        if np.count_nonzero(beside) < odd.size:
            ahead = odd[away > 0]
            rows = (index[ahead] + distance[ahead]) % self._count
            words[ahead, self._width :] = self._packed.numpy().take(rows, axis=0)
            if ahead.size * 2 > len(words) >= _ENOUGH_ROWS:
                self._distance = int(np.median(distance[ahead]))
            if ahead.size + np.count_nonzero(beside) < odd.size and self._void.packed is not None:
                nowhere = odd[away == 0]
                zeros = np.zeros(len(nowhere), dtype=np.int64)
                self._fill_on_cpu(words, nowhere, self._void.packed.numpy(), zeros)
            odd, away = odd[beside], away[beside]
        packed = self._side.rows.packed
        if odd.size and packed is not None:
            self._fill_on_cpu(words, odd, packed.numpy(), ~away)

    def _fill_on_cpu(
        self,
        words: NDArray[np.int64],
        places: NDArray[np.int64],
        side: NDArray[np.int64],
        slots: NDArray[np.integer[Any]],
    ) -> None:
        rows = places[:, None]
        for kind, columns, others in self._columns:
            words.view(kind)[rows, columns] = side.view(kind)[slots[:, None], others]

    def _fill(self, following: torch.Tensor, places: torch.Tensor, slots: torch.Tensor) -> None:
        rows, values = following.view(torch.uint8), slots.contiguous().view(torch.uint8)
        for size, row, slot in self._runs:
            columns = slice(row.start * size, row.stop * size)
            rows[places, columns] = values[:, slot.start * size : slot.stop * size]

    def _large_on_cpu(
        self, plan: Plan, index: torch.Tensor, distance: NDArray[np.int32]
    ) -> list[torch.Tensor]:
        arrays, nexts = [], None
        for path, name, dtype in plan.large:
            if name is None:
                arrays.append(self._arrays[path].index_select(0, index).view(dtype))
                continue
            if nexts is None:
                nexts = _Nexts(index.numpy(), distance, self._count)
            sources = self._arrays[path], self._slots_of(name)
            array = nexts.copy(*sources)
            if nexts.nowhere.size:
                array.numpy()[nexts.nowhere] = self._void_of(name).numpy()
            arrays.append(array.view(dtype))
        return arrays

    def _slots_of(self, name: str) -> torch.Tensor:
        array = self._side.rows.arrays[(name,)]
        return array.view(carrier(array.dtype))

    def _void_of(self, name: str) -> torch.Tensor:
        array = self._void.arrays[(name,)]
        return array.view(carrier(array.dtype))


class _Nexts:
    """Where next observations with own arrays lie: most of them in one of two places."""

    def __init__(self, index: NDArray[np.int64], distance: NDArray[np.int32], count: int) -> None:
        beside = distance < 0
        self.nowhere = np.flatnonzero(distance == 0)
        # what is copied first is copied for every row, so that it is the greater part
        self._slots_first = 2 * int(np.count_nonzero(beside)) > len(index)
        rows = (index + np.maximum(distance, 0)) % count
        slots = np.where(beside, ~distance, 0).astype(np.int64)
        first, second = (slots, rows) if self._slots_first else (rows, slots)
        self._rest = np.flatnonzero(~beside if self._slots_first else beside)
        self._first, self._second = torch.from_numpy(first), second[self._rest]

    def copy(self, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """`[n, *shape]`, from the rows' array and the side table's."""
        first, second = (slots, rows) if self._slots_first else (rows, slots)
        array = first.index_select(0, self._first)
        if self._rest.size:
            as_cells(array.numpy())[self._rest] = as_cells(second.numpy())[self._second]
        return array


def _runs(layout: CompactLayout) -> tuple[Run, ...]:
    pairs = sorted(
        (layout.stored[pair.root].offset or 0, layout.side[pair.name].offset or 0, field.nbytes)
        for pair in layout.pairs
        if (field := layout.stored[pair.root]).offset is not None and field.nbytes
    )
    merged: list[tuple[int, int, int]] = []
    for row, slot, nbytes in pairs:
        if merged and (row, slot) == tuple(place + merged[-1][2] for place in merged[-1][:2]):
            before = merged.pop()
            row, slot, nbytes = before[0], before[1], before[2] + nbytes
        merged.append((row, slot, nbytes))
    found = []
    for row, slot, nbytes in merged:
        size = gcd(8, row, slot, nbytes)
        places = (slice(at // size, (at + nbytes) // size) for at in (row, slot))
        found.append(Run(size, *places))
    return tuple(found)


def _void(layout: CompactLayout, device: torch.device) -> Rows:
    """One slot that stands for no observation: NaN where there is one, else zero."""
    void = Rows.zeros(layout.side, 1, device=device)
    live = void.view()
    for field in layout.side.fields:
        if field.dtype.is_floating_point or field.dtype.is_complex:
            live.get(field.key).fill_(torch.nan)
    return void
