"""Writes rows so that each observation is stored once: links successors, fills overflow slots."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_layout.keys import NEXT_MISSING, STEPS_TO_NEXT_OBS
from rl_replay.lossless.bitwise import same_bits_on_device, same_rows
from rl_replay.lossless.layout import SUCCESSOR, LosslessLayout, ObservationPair, Path
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.successors import equal_within, equal_within_on_device, successors
from rl_slabs import Rows
from rl_slabs.internals import (
    LANE_MASK,
    LANE_SHIFT,
    Leaves,
    ValidatedLeaves,
    bits_of,
    carrier,
    leaves_of,
    match_fields,
    match_leaves,
)

RowArray = NDArray[np.int64]
Back = NDArray[np.integer[Any]]


_FEW_DISTANCES = 64


class _Batch(NamedTuple):
    """Written rows that no older row is linked to yet."""

    positions: RowArray  # [n]
    numbers: range
    back: RowArray  # [n]


class SuccessorLinker:
    """Finds, links and releases the successors of rows: the writes of `LosslessRows`."""

    def __init__(
        self,
        layout: LosslessLayout,
        rows: Rows,
        side: OverflowTable,
        links: torch.Tensor,
        back: Back | None,
    ) -> None:
        self._layout, self._rows, self._side, self._back = layout, rows, side, back
        self._count, self._lane_rows = len(rows), len(rows) // side.lanes
        self._first_slot = len(rows) + 1
        self._view = rows.view()
        self._live = links
        self._on_cpu = bool(links.is_cpu)
        self.addresses: NDArray[np.int32] = (
            self._live.numpy() if self._on_cpu else np.zeros(self._count, dtype=np.int32)
        )
        self._stored = [f.path for f in layout.stored.fields]
        # the observations of rows and slots as numpy sees them, where it does
        self._columns = _columns(layout, rows, side) if self._on_cpu else []
        self._unlinked: dict[int, _Batch] = {}
        # None if another writer may have used others, or if they are too many to scan
        self._distances: set[int] | None = set() if side.memory.kind == "private" else None
        self.touches = 0
        self.reach = 1
        self.misses = layout.may_miss

    def write(
        self,
        rows: slice | torch.Tensor,
        positions: RowArray,
        numbers: range,
        cells: TensorDictBase | Leaves | ValidatedLeaves,
        back: Back,
    ) -> None:
        """Implements `LosslessRows.write`; `positions` are the same rows as `rows`."""
        leaves, observes = self._leaves(cells, len(positions))
        # [n], distances to the predecessors: 0 for none, -1 for padding
        distances = np.asarray(back, dtype=np.int64)
        observed = self._observed_in(leaves, len(positions), observes)
        target, linked = self._within(leaves, distances, observed)
        following = positions[target]
        # addresses: 0 none, 1 to count a row, above that a slot
        addresses = np.where(linked, following + 1, 0).astype(np.int32)
        self._record_distances(self._ring_distances(positions, following)[linked])
        in_slots = np.flatnonzero(observed & ~linked)
        lane = numbers.start >> LANE_SHIFT
        place = rows if isinstance(rows, slice) else positions
        self._make_room(lane, place, len(in_slots))
        if in_slots.size:
            slots = self._side.take(lane, len(in_slots))
            self._fill(slots, numbers.start + in_slots, leaves, in_slots)
            addresses[in_slots] = slots + self._first_slot
        if not self._layout.apart:
            # the address is written with its row, so that no reader sees one without the other
            leaves[SUCCESSOR] = addresses if self._on_cpu else torch.from_numpy(addresses)
        self._rows.put(rows, [leaves[path] for path in self._stored])
        if self._layout.apart:
            self._set_addresses(positions, addresses)
        elif not self._on_cpu:
            self.addresses[place] = addresses
        self.misses |= not observed.all()
        # only now: a write that fails above leaves nothing to link
        self._unlinked[lane] = _Batch(positions, numbers, distances)

    def link_predecessors(self, numbers: range, back: Back | None = None) -> None:
        """Implements `LosslessRows.link_predecessors`."""
        if back is not None:
            there = np.arange(numbers.start, numbers.stop)
            self._link_batch(_Batch(self._places(there), numbers, np.asarray(back, dtype=np.int64)))
            return
        lane = numbers.start >> LANE_SHIFT
        batch = self._unlinked.get(lane)
        if batch is not None:
            self._link_batch(batch)
            self._unlinked.pop(lane, None)

    def repair(self, numbers: range, *, published: bool) -> None:
        """Implements `LosslessRows.repair`; slots that no row addresses become free."""
        lane = numbers.start >> LANE_SHIFT
        if published:
            self.link_predecessors(numbers)
        self._unlinked.pop(lane, None)
        self._side.rebuild(lane, self._used(lane))

    def _link_batch(self, batch: _Batch) -> None:
        # rows below this id are overwritten by the batch itself
        oldest = batch.numbers.stop - self._lane_rows
        if self.reach == 1:
            rows = np.flatnonzero(batch.back > np.arange(len(batch.back)))
            numbers = batch.numbers.start + rows - batch.back[rows]
            rows, numbers = rows[numbers >= oldest], numbers[numbers >= oldest]
            if rows.size:
                self._link(batch.positions[rows], numbers, 1, missing=self.misses)
            return
        rows, distances = np.arange(len(batch.positions)), batch.back
        numbers = batch.numbers.start + rows
        # n-step rows: `reach` steps back along the links, as their next observation is that far
        # away
        for step in range(1, self.reach + 1):
            numbers = numbers - distances
            there = (distances > 0) & (numbers >= oldest)
            rows, numbers = rows[there], numbers[there]
            older = numbers < batch.numbers.start
            missing = self.misses and step == 1
            self._link(batch.positions[rows[older]], numbers[older], step, missing=missing)
            # without the links of older rows the walk ends after one step
            if not rows.size or self._back is None:
                break
            distances = self._back[self._places(numbers)].astype(np.int64)

    def update(
        self, index: torch.Tensor, numbers: RowArray, cells: TensorDictBase, back: Back
    ) -> None:
        """Implements `LosslessRows.update`; positions are `[n]`."""
        leaves = leaves_of(cells)
        mark = None if self._layout.has_mark else leaves.pop(NEXT_MISSING, None)
        fields = self._layout.schema.select(list(leaves))
        match_fields(cells, fields, index.shape, exact=False)
        positions = index.cpu().numpy()
        # predecessors keep the observation as it was: they get slots before it changes
        roots = any(pair.root in leaves for pair in self._layout.pairs)
        nexts = [pair for pair in self._layout.pairs if pair.next in leaves]
        observed = self._observed(positions, mark)
        self.touches += 1
        if roots:
            self._materialize(*self._predecessors_of(positions, numbers))
        if nexts and observed.size:
            self._require_all(nexts, positions[observed])
            self._materialize(positions[observed], numbers[observed])
            self._write_slots(positions[observed], nexts, leaves, observed)
        stored = [path for path in leaves if path in self._layout.stored]
        if stored:
            self._rows.write(index, cells, keys=stored)
        if roots or nexts:
            distances = np.asarray(back, dtype=np.int64)
            # updated observations may equal what their predecessors keep in slots
            older = distances > 0
            self._link(positions[older], (numbers - distances)[older], 1, missing=False)

    def clear(self) -> None:
        """Implements `LosslessRows.clear`."""
        self._unlinked.clear()
        self._set_addresses(np.arange(self._count), np.zeros(self._count, dtype=np.int32))
        for lane in range(self._side.lanes):
            self._side.rebuild(lane, np.empty(0, dtype=np.int64))

    def resume(
        self,
        positions: RowArray,
        numbers: RowArray,
        away: NDArray[np.int32],
        slots: NDArray[np.integer[Any]],
        where: RowArray,
    ) -> None:
        """Implements `LosslessRows.resume`; `where` maps each of `slots` to its slot here."""
        here = np.flatnonzero(positions >= 0)
        ahead = here[away[here] > 0]
        target = ahead + away[ahead]
        if target.size and (target.max() >= len(positions) or positions[target].min() < 0):
            raise ValueError("rows name others that are not there: restore the dump from a copy.")
        following, in_slots = positions[target], here[away[here] < 0]
        addresses = np.zeros(len(positions), dtype=np.int64)
        addresses[ahead] = following + 1
        addresses[in_slots] = where[np.searchsorted(slots, ~away[in_slots])] + self._first_slot
        self._record_distances(self._ring_distances(positions[ahead], following))
        self._set_addresses(positions[here], addresses[here])
        # a row may name those of its own lane alone, which are overwritten later than it
        parted = positions[ahead] // self._lane_rows != following // self._lane_rows
        self._materialize(positions[ahead[parted]], numbers[ahead[parted]])

    def successor(self, place: slice) -> NDArray[np.int32]:
        """Implements `LosslessRows.successor`."""
        positions = np.arange(self._count)[place]
        addresses = self.addresses[place].astype(np.int64)
        away = np.where(addresses > 0, self._ring_distances(positions, addresses - 1), 0)
        in_slots = addresses >= self._first_slot
        away[in_slots] = ~(addresses[in_slots] - self._first_slot)
        return away.astype(np.int32)

    def _leaves(
        self, cells: TensorDictBase | Leaves | ValidatedLeaves, count: int
    ) -> tuple[dict[Path, Any], bool]:
        """The leaves of a batch, on the CPU as arrays, and whether it has next observations."""
        if isinstance(cells, ValidatedLeaves):
            return {field.path: cells[field.key] for field in self._layout.given.fields}, True
        leaves: dict[Path, Any] = dict(leaves_of(cells))
        fields, observes = self._layout.coming(leaves)
        match_leaves(leaves, fields, torch.Size([count]), exact=True)
        if self._on_cpu:
            leaves = {path: _bits(leaf) for path, leaf in leaves.items()}
        return leaves, observes

    def _observed_in(
        self, leaves: dict[Path, Any], count: int, observes: bool
    ) -> NDArray[np.bool_]:
        """Which rows of a batch have a next observation, bool `[n]`."""
        if not observes:
            return np.zeros(count, dtype=np.bool_)
        mark = None if self._layout.has_mark else leaves.get(NEXT_MISSING)
        if mark is None:
            return np.ones(count, dtype=np.bool_)
        return ~_bits(mark)

    def _within(
        self, leaves: dict[Path, Any], back: RowArray, observed: NDArray[np.bool_]
    ) -> tuple[RowArray, NDArray[np.bool_]]:
        """The successor of each row in the batch, and whether its observation is equal."""
        steps = None
        if self._layout.has_steps:
            steps = _bits(leaves[STEPS_TO_NEXT_OBS]).reshape(-1)
            # bounded: a corrupt step count must not make every later link walk the whole ring
            self.reach = max(self.reach, min(int(steps.max(initial=1)), self._lane_rows))
        target = successors(back, steps)
        # without a next observation there are no bits to compare: the markers decide
        linked = (target >= 0) & ~observed
        if steps is not None:
            linked &= steps == 1
        if not observed.any() or not (target >= 0).any():
            return target, linked
        sides = [[leaves[path] for path in paths] for paths in zip(*self._paths(), strict=True)]
        wanted = np.where(observed, target, -1)
        if self._on_cpu:
            return target, linked | equal_within(sides[0], sides[1], wanted)
        there = [[leaf.to(self._live.device) for leaf in side] for side in sides]
        return target, linked | equal_within_on_device(there[0], there[1], wanted)

    def _paths(self) -> list[tuple[Path, Path]]:
        return [(pair.root, pair.next) for pair in self._layout.pairs]

    def _ring_distances(self, earlier: RowArray, later: RowArray) -> RowArray:
        """Distances from earlier to later positions round the ring."""
        away = later - earlier
        # the later row may be at the start of the ring
        away[away < 0] += self._count
        return away

    def _fill(
        self, slots: RowArray, numbers: RowArray, leaves: dict[Path, Any], rows: RowArray
    ) -> None:
        """Copies next observations of some rows of a batch into overflow slots."""
        if not self._on_cpu:
            found = {
                pair.name: _gather_rows(leaves[pair.next], rows) for pair in self._layout.pairs
            }
            self._side.put(slots, numbers, found)
            return
        for pair, (_, column) in zip(self._layout.pairs, self._columns, strict=True):
            column[slots] = _bits(leaves[pair.next])[rows]
        # last, so that no reader takes a half written slot for whole
        self._side.owners[slots] = numbers

    def _make_room(self, lane: int, place: slice | RowArray, count: int) -> None:
        """Releases the slots of overwritten rows, after memory for `count` slots is secured."""
        addresses = self.addresses[place]
        in_slots = addresses >= self._first_slot
        freed = addresses[in_slots].astype(np.int64) - self._first_slot
        # secured before anything is released: a full disk leaves the old rows whole
        wanted = max(0, count - len(freed))
        if not self._side.secure(lane, wanted):
            # slots that a killed writer had taken and that no row names
            self._side.rebuild(lane, self._used(lane))
            self._side.secure(lane, wanted)
        if freed.size:
            # no row names a slot any more before it is given back
            if isinstance(place, slice):
                place = np.arange(place.start, place.stop, place.step)
            self.touches += 1
            self._set_addresses(place[in_slots], np.zeros(len(freed), dtype=np.int32))
            self._side.release(lane, freed)

    def _used(self, lane: int) -> RowArray:
        addresses = self.addresses[lane * self._lane_rows : (lane + 1) * self._lane_rows]
        return addresses[addresses >= self._first_slot].astype(np.int64) - self._first_slot

    def _set_addresses(self, positions: RowArray, addresses: NDArray[np.integer[Any]]) -> None:
        self.addresses[positions] = addresses
        if not self._on_cpu:
            device = self._live.device
            places = torch.from_numpy(positions)
            values = torch.from_numpy(addresses.astype(np.int32))
            self._live[places.to(device)] = values.to(device)

    def _places(self, numbers: RowArray) -> RowArray:
        lanes = (numbers >> LANE_SHIFT) * self._lane_rows
        return lanes + (numbers & LANE_MASK) % self._lane_rows

    def _link(self, positions: RowArray, numbers: RowArray, step: int, *, missing: bool) -> None:
        """Links older rows to new rows whose observation equals their next observation."""
        places = self._places(numbers)
        addresses = self.addresses[places].astype(np.int64)
        fits = addresses >= self._first_slot
        # the slot's owner tells whether the row is still the one meant, or was overwritten
        fits[fits] = self._side.owners[addresses[fits] - self._first_slot] == numbers[fits]
        if missing:
            fits |= addresses == 0
        if self._layout.has_steps:
            fits &= self._steps(places) == step
        positions, places, addresses = positions[fits], places[fits], addresses[fits]
        in_slots = np.flatnonzero(addresses)
        same = np.ones(len(addresses), dtype=np.bool_)
        slots = addresses[in_slots] - self._first_slot
        same[in_slots] = self._equals_slots(positions[in_slots], slots)
        positions, places, addresses = positions[same], places[same], addresses[same]
        if not positions.size:
            return
        self._record_distances(self._ring_distances(places, positions))
        # the new address first: a released slot may be taken at once
        self._set_addresses(places, positions + 1)
        freed = addresses[addresses > 0] - self._first_slot
        # each lane has a free list of its own, so slots return to the lane of their row
        if self._side.lanes == 1:
            self._side.release(0, freed)
            return
        lanes = places[addresses > 0] // self._lane_rows
        for lane in np.unique(lanes).tolist():
            self._side.release(lane, freed[lanes == lane])

    def _steps(self, places: RowArray) -> RowArray:
        steps = _gather_rows(self._view.get(STEPS_TO_NEXT_OBS), places)
        found: RowArray = steps.cpu().numpy().reshape(-1)
        return found

    def _equals_slots(self, positions: RowArray, slots: RowArray) -> NDArray[np.bool_]:
        """Whether each row's observation equals the one in an overflow slot, bool `[n]`."""
        same = np.ones(len(slots), dtype=np.bool_)
        if not same.size:
            return same
        if self._on_cpu:
            for one, two in self._columns:
                same &= same_rows(one, positions, two, slots)
            return same
        slot_leaves = self._side.rows.view()
        for pair in self._layout.pairs:
            root, slot = self._view.get(pair.root), slot_leaves.get(pair.name)
            ours, others = _gather_rows(root, positions), _gather_rows(slot, slots)
            same &= same_bits_on_device(ours, others).cpu().numpy()
        return same

    def _observed(self, positions: RowArray, mark: torch.Tensor | None) -> RowArray:
        """Indices of the updated rows that are given a next observation."""
        if mark is None:
            return np.arange(len(positions))
        missing = mark.cpu().numpy().reshape(-1)
        if (missing & (self.addresses[positions] != 0)).any():
            raise ValueError(
                f"{NEXT_MISSING} is True in rows that have a next observation, which cannot be "
                "taken from them: leave the mark out, or as it was read."
            )
        return np.flatnonzero(~missing)

    def _require_all(self, nexts: list[ObservationPair], positions: RowArray) -> None:
        if len(nexts) < len(self._layout.pairs) and (self.addresses[positions] == 0).any():
            raise KeyError(
                "rows that have no next observation get a whole one or none: give all of "
                f"{[pair.next for pair in self._layout.pairs]}."
            )

    def _predecessors_of(self, positions: RowArray, numbers: RowArray) -> tuple[RowArray, RowArray]:
        """The predecessors of some rows: their positions and row ids."""
        if self._distances is None:
            # too many distances, or unknown ones: all addresses are searched
            inside = (self.addresses > 0) & (self.addresses < self._first_slot)
            places = np.flatnonzero(inside & np.isin(self.addresses - 1, positions))
            order, addresses = np.argsort(positions), self.addresses[places].astype(np.int64) - 1
            later = numbers[order][np.searchsorted(positions[order], addresses)]
            return places, later - self._ring_distances(places, addresses) % self._lane_rows
        found = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
        for distance in self._distances:
            places = (positions - distance) % self._count
            # address = position + 1
            names = self.addresses[places] == positions + 1
            found.append((places[names], numbers[names] - distance % self._lane_rows))
        places, earlier = (np.concatenate(part) for part in zip(*found, strict=True))
        return places, earlier

    def _record_distances(self, distances: NDArray[np.integer[Any]]) -> None:
        """Records the distances between linked rows."""
        if self._distances is None or not distances.size:
            return
        if int(distances[0]) in self._distances and (distances == distances[0]).all():
            return
        self._distances.update(np.unique(distances).tolist())
        if len(self._distances) > _FEW_DISTANCES:
            self._distances = None

    def _materialize(self, places: RowArray, numbers: RowArray) -> None:
        """Copies the next observations of linked rows into slots of their own."""
        # n-step rows reach one row from several distances
        places, first = np.unique(places, return_index=True)
        numbers, addresses = numbers[first], self.addresses[places].astype(np.int64)
        linked = addresses < self._first_slot
        places, numbers, addresses = places[linked], numbers[linked], addresses[linked]
        lanes = places // self._lane_rows
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            slots = self._side.take(lane, int(here.sum()))
            # rows that have none are given theirs by the caller
            following = np.where(addresses[here] > 0, addresses[here] - 1, places[here])
            leaves = {
                pair.next: _gather_rows(self._view.get(pair.root), following)
                for pair in self._layout.pairs
            }
            self._fill(slots, numbers[here], leaves, np.arange(len(slots)))
            self._set_addresses(places[here], slots + self._first_slot)

    def _write_slots(
        self,
        positions: RowArray,
        pairs: list[ObservationPair],
        leaves: dict[Path, torch.Tensor],
        rows: RowArray,
    ) -> None:
        slots = self.addresses[positions].astype(np.int64) - self._first_slot
        if self._on_cpu:
            for pair, (_, column) in zip(self._layout.pairs, self._columns, strict=True):
                if pair in pairs:
                    column[slots] = _bits(leaves[pair.next])[rows]
            return
        given = {pair.name: _gather_rows(leaves[pair.next], rows) for pair in pairs}
        source = TensorDict(given, batch_size=[len(rows)])
        index = torch.from_numpy(slots).to(self._live.device)
        self._side.rows.write(index, source, keys=list(given))


def _columns(
    layout: LosslessLayout, rows: Rows, side: OverflowTable
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The live columns of each observation in the rows and in the overflow table."""
    ours, theirs = rows.columns(), side.rows.columns()
    names = [layout.stored[pair.root].key for pair in layout.pairs]
    slot_names = names if side.space is not None else [pair.name for pair in layout.pairs]
    return [(ours[one], theirs[two]) for one, two in zip(names, slot_names, strict=True)]


def _bits(leaf: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """A leaf as a numpy array of bits."""
    return bits_of(leaf, carrier(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def _gather_rows(leaf: torch.Tensor, rows: RowArray) -> torch.Tensor:
    """Some rows of a leaf of any dtype, `[k, *shape]`."""
    bits = leaf.detach().resolve_conj().view(carrier(leaf.dtype))
    return bits[torch.from_numpy(rows).to(leaf.device)].view(leaf.dtype)
