"""Where next observations are: the addresses of rows, and how older rows get those of new ones."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.lossless.layout import LosslessLayout
from rl_replay.lossless.observations import Observations
from rl_replay.lossless.overflow import OverflowTable
from rl_slabs import Rows
from rl_slabs.internals import LANE_MASK, LANE_SHIFT
from rl_tensordict.types import Ints

Back = NDArray[np.integer[Any]]

AnyAddresses = NDArray[np.integer[Any]]
AnyArray = TypeVar("AnyArray", int, NDArray[Any], torch.Tensor)

_FEW_DISTANCES = 64


class AddressCode:
    """What an address says of `count` rows: 0 nowhere, `position + 1` a row, above `count` a slot.

    Of arrays and of tensors.
    """

    def __init__(self, count: int) -> None:
        self.count, self.first_slot = count, count + 1

    def of_rows(self, positions: AnyArray) -> AnyArray:
        """The addresses of rows."""
        return positions + 1

    def of_slots(self, slots: AnyArray) -> AnyArray:
        """The addresses of overflow slots."""
        return slots + self.first_slot

    def in_rows(self, addresses: AnyArray) -> AnyArray:
        """Which addresses are of rows."""
        return (addresses > 0) & (addresses < self.first_slot)

    def in_slots(self, addresses: AnyArray) -> AnyArray:
        """Which addresses are of slots."""
        return addresses >= self.first_slot

    def rows(self, addresses: AnyArray) -> AnyArray:
        """The positions at addresses of rows."""
        return addresses - 1

    def slots(self, addresses: AnyArray) -> AnyArray:
        """The slots at addresses of slots."""
        return addresses - self.first_slot


class Addresses(AddressCode):
    """The address of each row's next observation."""

    def __init__(
        self,
        live: torch.Tensor,
        *,
        lanes: int,
        alone: bool,
        on_host: bool | None = None,
        misses: bool = False,
    ) -> None:
        super().__init__(len(live))
        self.lane_rows = self.count // lanes
        self._live = live
        self._on_host = bool(live.is_cpu) if on_host is None else on_host
        # the addresses, int32 `[rows]`: live where rows are on the host, else a copy there
        self.values: NDArray[np.int32] = (
            live.numpy() if self._on_host else np.zeros(self.count, dtype=np.int32)
        )
        # the distances from rows to the rows that they name; None if another writer may have used
        # others, or if they are too many to scan
        self._distances: set[int] | None = set() if alone else None
        self.misses = misses  # whether rows without a next observation were written
        self.reach = 1  # the most steps from a row to its next observation so far

    def set(self, positions: slice | Ints, addresses: AnyAddresses) -> None:
        """Writes the addresses of some rows."""
        self.values[positions] = addresses
        if not self._on_host:
            device, values = self._live.device, torch.from_numpy(addresses.astype(np.int32))
            if isinstance(positions, slice):
                self._live[positions] = values.to(device)
            else:
                self._live[torch.from_numpy(positions).to(device)] = values.to(device)

    def slots_of_lane(self, lane: int) -> Ints:
        """The slots that rows of a lane name."""
        addresses = self.values[lane * self.lane_rows : (lane + 1) * self.lane_rows]
        return self.slots(addresses[self.in_slots(addresses)])

    def places(self, numbers: AnyArray) -> AnyArray:
        """The positions of row ids."""
        lanes = (numbers >> LANE_SHIFT) * self.lane_rows
        return lanes + (numbers & LANE_MASK) % self.lane_rows

    def are_new(self, numbers: range) -> bool:
        """Whether no other rows were at the positions of some rows before."""
        return (numbers.stop - 1) & LANE_MASK < self.lane_rows

    def distances(self, earlier: Ints, later: Ints) -> Ints:
        """Distances from earlier to later positions round the ring."""
        away = later - earlier
        # the later row may be at the start of the ring
        away[away < 0] += self.count
        return away

    def relative(self, place: slice) -> NDArray[np.int32]:
        """The addresses of some rows as distances: 0 for nowhere, ~slot for a slot."""
        positions = np.arange(self.count)[place]
        addresses = self.values[place].astype(np.int64)
        away = np.where(addresses > 0, self.distances(positions, self.rows(addresses)), 0)
        in_slots = self.in_slots(addresses)
        away[in_slots] = ~self.slots(addresses[in_slots])
        return away.astype(np.int32)

    def record(self, distances: AnyAddresses) -> None:
        """Records the distances of new addresses, for `predecessors_of`."""
        if self._distances is None or not distances.size:
            return
        if int(distances[0]) in self._distances and (distances == distances[0]).all():
            return
        self._distances.update(np.unique(distances).tolist())
        if len(self._distances) > _FEW_DISTANCES:
            self._distances = None

    def record_one(self, away: int) -> None:
        """Records the distance between two positions."""
        distance = away if away >= 0 else away + self.count
        if self._distances is not None and distance not in self._distances:
            self.record(np.array([distance]))

    def predecessors_of(self, positions: Ints, numbers: Ints) -> tuple[Ints, Ints]:
        """The rows that name some rows: their positions and row ids."""
        if self._distances is None:
            # too many distances, or unknown ones: all addresses are searched
            inside = self.in_rows(self.values)
            places = np.flatnonzero(inside & np.isin(self.rows(self.values), positions))
            order, rows = np.argsort(positions), self.rows(self.values[places].astype(np.int64))
            later = numbers[order][np.searchsorted(positions[order], rows)]
            return places, later - self.distances(places, rows) % self.lane_rows
        found = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
        for distance in self._distances:
            places = (positions - distance) % self.count
            names = self.values[places] == self.of_rows(positions)
            found.append((places[names], numbers[names] - distance % self.lane_rows))
        places, earlier = (np.concatenate(part) for part in zip(*found, strict=True))
        return places, earlier


class _Batch(NamedTuple):
    """Written rows that no older row is linked to yet."""

    place: slice | Ints  # Their positions, [n]
    numbers: range
    back: Back  # [n], distances to the predecessors: 0 for none, -1 for padding
    heads: Ints | None = None  # Rows that continue one from before the batch, if they are known


class SuccessorLinker:
    """Links older rows to new ones that hold their next observations; each link frees a slot."""

    def __init__(
        self,
        layout: LosslessLayout,
        rows: Rows,
        side: OverflowTable,
        addresses: Addresses,
        back: Back | None,
        *,
        on_host: bool,
    ) -> None:
        self.layout, self.addresses, self.back = layout, addresses, back
        self.observations = Observations(layout, rows, side, on_host=on_host)
        self.side, self._on_host = side, on_host
        self._unlinked: dict[int, _Batch] = {}

    def note_unlinked(
        self, place: slice | Ints, numbers: range, back: Back, heads: Ints | None = None
    ) -> None:
        """Records written rows, to which older ones are to be linked once they are published."""
        self._unlinked[numbers.start >> LANE_SHIFT] = _Batch(place, numbers, back, heads)

    def link_predecessors(self, numbers: range, back: Back | None = None) -> None:
        """Links older rows to the last written ones, which are published by now."""
        # `back` is for rows that came otherwise than by `write`, as loaded ones do
        if back is not None:
            there = np.arange(numbers.start, numbers.stop)
            self._link_batch(_Batch(self.addresses.places(there), numbers, back))
            return
        lane = numbers.start >> LANE_SHIFT
        batch = self._unlinked.get(lane)
        if batch is not None:
            self._link_batch(batch)
            self._unlinked.pop(lane, None)

    def repair(self, numbers: range, *, published: bool) -> None:
        """Repairs links after an interrupted write; slots that no row addresses become free."""
        lane = numbers.start >> LANE_SHIFT
        if published:
            self.link_predecessors(numbers)
        elif self.addresses.are_new(numbers):  # the next write does not look at what they name
            places = self.addresses.places(np.arange(numbers.start, numbers.stop))
            self.addresses.set(places, np.zeros(len(places), dtype=np.int32))
        self._unlinked.pop(lane, None)
        self.side.rebuild(lane, self.addresses.slots_of_lane(lane))

    def _link_batch(self, batch: _Batch) -> None:
        # rows below this id are overwritten by the batch itself
        oldest = batch.numbers.stop - self.addresses.lane_rows
        place, usual = batch.place, self._on_host and not self.layout.has_steps
        if usual and len(batch.back) == 1 and isinstance(place, slice):
            before = batch.numbers.start - int(batch.back[0])
            if oldest <= before < batch.numbers.start:
                self.link_one(place.start, before)
            return
        if self.addresses.reach == 1:
            rows = heads_of(batch.back) if batch.heads is None else batch.heads
            if usual and rows.size == 1 and isinstance(place, slice):
                row = int(rows[0])
                before = batch.numbers.start + row - int(batch.back[row])
                if before >= oldest:
                    self.link_one(place.start + row, before)
                return
            numbers = batch.numbers.start + rows - batch.back[rows]
            rows, numbers = rows[numbers >= oldest], numbers[numbers >= oldest]
            if rows.size:
                missing = self.addresses.misses
                self.link(positions_at(place, rows), numbers, 1, missing=missing)
            return
        rows, distances = np.arange(len(batch.back)), batch.back.astype(np.int64)
        numbers = batch.numbers.start + rows
        # n-step rows: `reach` steps back along the links, as their next observation is that far
        # away
        for step in range(1, self.addresses.reach + 1):
            numbers = numbers - distances
            there = (distances > 0) & (numbers >= oldest)
            rows, numbers = rows[there], numbers[there]
            older = numbers < batch.numbers.start
            missing = self.addresses.misses and step == 1
            self.link(positions_at(place, rows[older]), numbers[older], step, missing=missing)
            # without the links of older rows the walk ends after one step
            if not rows.size or self.back is None:
                break
            distances = self.back[self.addresses.places(numbers)].astype(np.int64)

    def clear(self) -> None:
        """Implements `LosslessRows.clear`."""
        self._unlinked.clear()
        count = self.addresses.count
        self.addresses.set(np.arange(count), np.zeros(count, dtype=np.int32))
        for lane in range(self.side.lanes):
            self.side.rebuild(lane, np.empty(0, dtype=np.int64))

    def resume(
        self,
        positions: Ints,
        numbers: Ints,
        away: NDArray[np.int32],
        slots: NDArray[np.integer[Any]],
        where: Ints,
    ) -> None:
        """Implements `LosslessRows.resume`; `where` maps each of `slots` to its slot here."""
        here = np.flatnonzero(positions >= 0)
        ahead = here[away[here] > 0]
        target = ahead + away[ahead]
        if target.size and (target.max() >= len(positions) or positions[target].min() < 0):
            raise ValueError("rows name others that are not there: restore the dump from a copy.")
        following, in_slots = positions[target], here[away[here] < 0]
        addresses = np.zeros(len(positions), dtype=np.int64)
        addresses[ahead] = self.addresses.of_rows(following)
        here_too = where[np.searchsorted(slots, ~away[in_slots])]
        addresses[in_slots] = self.addresses.of_slots(here_too)
        self.addresses.record(self.addresses.distances(positions[ahead], following))
        self.addresses.set(positions[here], addresses[here])
        # a row may name those of its own lane alone, which are overwritten later than it
        lane_rows = self.addresses.lane_rows
        parted = positions[ahead] // lane_rows != following // lane_rows
        self.materialize(positions[ahead[parted]], numbers[ahead[parted]])

    def link(self, positions: Ints, numbers: Ints, step: int, *, missing: bool) -> None:
        """Links older rows to new rows whose observation equals their next observation."""
        table = self.addresses
        places = table.places(numbers)
        addresses = table.values[places].astype(np.int64)
        fits = table.in_slots(addresses)
        # the slot's owner tells whether the row is still the one meant, or was overwritten
        fits[fits] = self.side.owners[table.slots(addresses[fits])] == numbers[fits]
        if missing:
            fits |= addresses == 0
        if self.layout.has_steps:
            fits &= self.observations.steps(places) == step
        positions, places, addresses = positions[fits], places[fits], addresses[fits]
        in_slots = np.flatnonzero(addresses)
        same = np.ones(len(addresses), dtype=np.bool_)
        slots = table.slots(addresses[in_slots])
        same[in_slots] = self.observations.equal(positions[in_slots], slots)
        positions, places, addresses = positions[same], places[same], addresses[same]
        if not positions.size:
            return
        table.record(table.distances(places, positions))
        # the new address first: a released slot may be taken at once
        table.set(places, table.of_rows(positions))
        freed = table.slots(addresses[addresses > 0])
        self.side.release_each(places[addresses > 0] // table.lane_rows, freed)

    def link_one(self, position: int, before: int) -> None:
        """`link` for one older row and a row one step later on the host, without arrays."""
        table = self.addresses
        place = table.places(before)
        address = int(table.values[place])
        slot = table.slots(address)
        if address == 0 and not table.misses:
            return
        # the slot's owner tells whether the row is still the one meant, or was overwritten
        if address and (slot < 0 or self.side.owners[slot] != before):
            return
        if address and not self.observations.is_equal(position, slot):
            return
        table.record_one(position - place)
        # the new address first: a released slot may be taken at once
        table.values[place] = table.of_rows(position)
        if address:
            self.side.release_one(place // table.lane_rows, slot)

    def materialize(self, places: Ints, numbers: Ints) -> None:
        """Copies the next observations of linked rows into slots of their own."""
        # n-step rows reach one row from several distances
        places, first = np.unique(places, return_index=True)
        numbers, addresses = numbers[first], self.addresses.values[places].astype(np.int64)
        linked = ~self.addresses.in_slots(addresses)
        places, numbers, addresses = places[linked], numbers[linked], addresses[linked]
        lanes = places // self.addresses.lane_rows
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            slots = self.side.take(lane, int(here.sum()))
            # rows that have none are given theirs by the caller
            following = np.where(
                addresses[here] > 0, self.addresses.rows(addresses[here]), places[here]
            )
            self.side.put(slots, numbers[here], self.observations.stored(following))
            self.addresses.set(places[here], self.addresses.of_slots(slots))


def heads_of(back: Back) -> Ints:
    """The rows of a batch that continue one from before it."""
    # only as many rows as the longest distance may reach back so far
    head = back[: max(int(back.max(initial=0)), 0)]
    return np.flatnonzero(head > np.arange(len(head)))


def positions_at(place: slice | Ints, rows: Ints) -> Ints:
    """The positions of some rows of a batch that is at some place."""
    return rows + place.start if isinstance(place, slice) else place[rows]
