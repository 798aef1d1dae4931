"""Gathers rows whose next observation is in another row or in the overflow table."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout.keys import NEXT_MISSING
from rl_replay.lossless.layout import SUCCESSOR, LosslessLayout
from rl_replay.lossless.linker import AddressCode
from rl_replay.lossless.overflow import OverflowTable
from rl_slabs import Field, Rows
from rl_slabs.internals import PARALLEL_ITEMS, as_cells, build_unpack, carrier, take_known_rows
from rl_tensordict.types import Array, KeyPath, NestedKey

_INT32 = np.dtype(np.int32)


class SuccessorRows(NamedTuple):
    """Gathered rows and their next observations."""

    # The rows [n, words]: by numpy, and after them those of the next observations, or both side by
    # side in one tensor
    packed: tuple[NDArray[np.int64], ...] | torch.Tensor
    arrays: list[torch.Tensor]  # The large leaves, [n, *shape] each
    addresses: torch.Tensor | NDArray[np.integer[Any]]  # What each row names, [n]


class LeafRun(NamedTuple):
    """Bytes of observations that are contiguous both in a stored row and in an overflow slot."""

    row: slice  # Where they are in a row
    slot: slice  # Where they are in a slot


class LeafPiece(NamedTuple):
    """A `LeafRun` as numpy columns of the widest integers that it can be moved as."""

    dtype: np.dtype[np.signedinteger[Any]]  # The integers
    columns: slice  # Where they are in a row of them
    slots: Array  # Those of the overflow table, [slots, integers], live
    void: Array  # Those of no observation, [integers]


class Large(NamedTuple):
    """A requested leaf with an array of its own."""

    path: KeyPath  # The path of the array among the stored rows
    # Its name in the overflow table where the next observation is wanted, else None
    name: str | None
    dtype: torch.dtype  # Its dtype


class GatherPlan:
    """The precomputed layout of a read of some leaves."""

    def __init__(self, layout: LosslessLayout, keys: Sequence[NestedKey] | None) -> None:
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
        found = [*packed, *large]
        # by whether numpy copied the packed rows, and whether each leaf has memory of its own
        self.unpack = {
            (copied, contiguous): build_unpack(
                found, width if copied else total, contiguous=contiguous, copied=copied
            )
            for copied in (False, True)
            for contiguous in (False, True)
        }


class Gather:
    """Gathers rows and their next observations."""

    # Where rows and slots are in one memory, what a row names is where its next observation is
    # read. Else successors are read like rows, and the few next observations that no row holds are
    # mended.

    def __init__(
        self, layout: LosslessLayout, rows: Rows, side: OverflowTable, links: torch.Tensor
    ) -> None:
        if rows.packed is None:
            raise ValueError("stored rows have a packed leaf.")
        self._side, self._code = side, AddressCode(len(rows))
        self._packed = rows.packed
        self._width = layout.stored.row_bytes // 8
        # None if rows that were gathered say it themselves
        self._links = links if layout.apart else None
        self._place = 0 if layout.apart else (layout.stored[SUCCESSOR].offset or 0) // 4
        self._runs = _runs(layout)
        self._void = _void(layout, rows.packed.device)
        self._space = side.space
        if rows.packed.is_cpu:
            self._words = rows.packed.numpy()
            self._apart = links.numpy() if layout.apart else None
            self._pieces = _pieces(self._runs, side.rows, self._void) if side.space is None else []
        if side.space is not None:
            _write_void(layout, side.space[:1])
        self._arrays = {
            path: array.view(carrier(array.dtype)) for path, array in rows.arrays.items()
        }

    def on_cpu(
        self,
        plan: GatherPlan,
        index: torch.Tensor,
        given: NDArray[np.int64] | None = None,
    ) -> SuccessorRows:
        """Gathers packed rows, large leaves and the address of each next observation, by numpy."""
        places = index.numpy()
        words = take_known_rows(self._words, places)
        addresses = self.addresses_of(words, places).astype(np.int64) if given is None else given
        arrays = self._large_on_cpu(plan, index, addresses) if plan.large else []
        if not plan.wide:
            return SuccessorRows((words,), arrays, addresses)
        if self._space is not None:
            return SuccessorRows(
                (words, take_known_rows(self._space, addresses)), arrays, addresses
            )
        # rows without a next observation read some row, which is dropped later
        nexts = take_known_rows(self._words, self._code.rows(addresses) % self._code.count)
        odd = (~self._code.in_rows(addresses)).nonzero()[0]
        if odd.size:
            self._mend(nexts, odd, addresses[odd])
        return SuccessorRows((words, nexts), arrays, addresses)

    def joined(
        self, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Packed rows, the rows or overflow slots of their next observations, their addresses."""
        space = self._space
        assert space is not None  # asked only of rows that lie so
        if places.size * self._width >= PARALLEL_ITEMS:
            words = take_known_rows(self._words, places)
            addresses = self.addresses_of(words, places)
            return words, take_known_rows(space, addresses.astype(np.int64)), addresses
        words = self._words.take(places, 0, None, "wrap")
        addresses = self.addresses_of(words, places)
        # without a look whether each is there, which would take a copy of the addresses
        return words, space.take(addresses, 0, None, "wrap"), addresses

    def addresses_of(
        self, words: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """The address of the next observation in each gathered row."""
        if self._apart is None:
            return words.view(_INT32)[:, self._place]
        return self._apart.take(places, 0, None, "wrap")

    def on_device(self, plan: GatherPlan, index: torch.Tensor) -> SuccessorRows:
        """`on_cpu` by tensor operations alone, for rows on any device."""
        own = self._packed.index_select(0, index)
        if self._links is None:
            addresses = own.view(torch.int32)[:, self._place]
        else:
            addresses = self._links.index_select(0, index)
        code, found = self._code, addresses.long()
        # any valid row where no row holds it; overwritten below
        nexts = torch.where(code.in_rows(found), code.rows(found), index)
        in_slots = code.in_slots(found).nonzero().squeeze(1)
        slots = code.slots(found[in_slots])
        absent = (found == 0).nonzero().squeeze(1)
        if plan.wide:
            following = self._packed.index_select(0, nexts)
            packed = self._side.rows.packed
            if packed is not None and self._void.packed is not None:
                self._fill(following, in_slots, packed.index_select(0, slots))
                self._fill(following, absent, self._void.packed.expand(len(absent), -1))
            own = torch.cat([own, following], 1)
        arrays = []
        for path, name, dtype in plan.large:
            array = self._arrays[path].index_select(0, index if name is None else nexts)
            if name is not None:
                slot, void = self._slots_of(name), self._void_of(name)
                array.index_copy_(0, in_slots, slot.index_select(0, slots))
                array.index_copy_(0, absent, void.expand(len(absent), *void.shape[1:]))
            arrays.append(array.view(dtype))
        return SuccessorRows(own, arrays, addresses)

    def _mend(
        self, nexts: NDArray[np.int64], odd: NDArray[np.intp], addresses: NDArray[np.int64]
    ) -> None:
        """Fills the next observations of the rows `odd`, which no row holds."""
        in_slots = addresses > 0
        slots = self._code.slots(addresses[in_slots])
        for dtype, columns, source, void in self._pieces:
            items = nexts.view(dtype)
            items[odd[in_slots], columns] = source[slots]
            items[odd[~in_slots], columns] = void

    def _fill(self, following: torch.Tensor, places: torch.Tensor, slots: torch.Tensor) -> None:
        rows, values = following.view(torch.uint8), slots.contiguous().view(torch.uint8)
        for row, slot in self._runs:
            rows[places, row] = values[:, slot]

    def _large_on_cpu(
        self, plan: GatherPlan, index: torch.Tensor, addresses: NDArray[np.int64]
    ) -> list[torch.Tensor]:
        arrays, nexts = [], None
        for path, name, dtype in plan.large:
            if name is None:
                arrays.append(self._arrays[path].index_select(0, index).view(dtype))
                continue
            if nexts is None:
                nexts = _Nexts(addresses, self._code)
            sources = self._arrays[path], self._slots_of(name)
            array = nexts.copy(*sources)
            if nexts.absent.size:
                array.numpy()[nexts.absent] = self._void_of(name).numpy()
            arrays.append(array.view(dtype))
        return arrays

    def _slots_of(self, name: str) -> torch.Tensor:
        array = self._side.rows.arrays[(name,)]
        return array.view(carrier(array.dtype))

    def _void_of(self, name: str) -> torch.Tensor:
        array = self._void.arrays[(name,)]
        return array.view(carrier(array.dtype))


class _Nexts:
    """Where each next observation with an own array is: in the rows' array or in a slot."""

    def __init__(self, addresses: NDArray[np.int64], code: AddressCode) -> None:
        in_slots = code.in_slots(addresses)
        self.absent = np.flatnonzero(addresses == 0)
        # what is copied first is copied for every row, so that it is the greater part
        self._slots_first = 2 * int(np.count_nonzero(in_slots)) > len(addresses)
        # rows without a next observation read some row or slot, which is zeroed later
        rows, slots = (
            code.rows(addresses) % code.count,
            np.where(in_slots, code.slots(addresses), 0),
        )
        first, second = (slots, rows) if self._slots_first else (rows, slots)
        self._rest = np.flatnonzero(~in_slots if self._slots_first else in_slots)
        self._first, self._second = torch.from_numpy(first), second[self._rest]

    def copy(self, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Next observations `[n, *shape]`, from the rows' array and the overflow table's."""
        first, second = (slots, rows) if self._slots_first else (rows, slots)
        array = first.index_select(0, self._first)
        if self._rest.size:
            as_cells(array.numpy())[self._rest] = as_cells(second.numpy())[self._second]
        return array


def _runs(layout: LosslessLayout) -> tuple[LeafRun, ...]:
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
    return tuple(
        LeafRun(slice(row, row + nbytes), slice(slot, slot + nbytes))
        for row, slot, nbytes in merged
    )


def _pieces(runs: Sequence[LeafRun], slots: Rows, void: Rows) -> list[LeafPiece]:
    if slots.packed is None or void.packed is None:
        return []
    pieces = []
    for row, slot in runs:
        size = gcd(8, row.start, row.stop, slot.start, slot.stop)
        dtype = np.dtype(f"i{size}")
        ours, theirs = (slice(part.start // size, part.stop // size) for part in (row, slot))
        filled, empty = (
            side.numpy().view(dtype)[:, theirs] for side in (slots.packed, void.packed)
        )
        pieces.append(LeafPiece(dtype, ours, filled, empty[0]))
    return pieces


def _void(layout: LosslessLayout, device: torch.device) -> Rows:
    """One slot that represents no observation: NaN if the dtype has it, else zero."""
    void = Rows.zeros(layout.side, 1, device=device)
    live = void.view()
    for field in layout.side.fields:
        if field.dtype.is_floating_point or field.dtype.is_complex:
            live.get(field.key).fill_(torch.nan)
    return void


def _write_void(layout: LosslessLayout, row: NDArray[np.int64]) -> None:
    """Fills the observations of a row `[1, words]` with the values of no observation."""
    columns = Rows(layout.stored, torch.from_numpy(row), {}).columns()
    void = _void(layout, torch.device("cpu")).columns()
    for pair in layout.pairs:
        columns[layout.stored[pair.root].key][:] = void[pair.name]
