"""Writes rows so that each observation is stored once: links successors, fills overflow slots."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout.keys import NEXT_MISSING
from rl_replay.lossless.addresses import Addresses
from rl_replay.lossless.batch_linker import Back, BatchLinker, heads_of, positions_at
from rl_replay.lossless.layout import SUCCESSOR, LosslessLayout
from rl_replay.lossless.observations import Observations, bits
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.single_linker import SingleLinker
from rl_slabs import Rows
from rl_slabs.internals import LANE_SHIFT, Leaves, ValidatedLeaves, leaves_of, match_leaves
from rl_tensordict.types import Ints, KeyPath


class _Batch(NamedTuple):
    """Written rows that no older row is linked to yet."""

    place: slice | Ints  # Their positions, [n]
    numbers: range
    back: Back  # [n], distances to the predecessors: 0 for none, -1 for padding
    heads: Ints | None = None  # Rows that continue one from before the batch, if they are known


class SuccessorLinker:
    """Finds, links and releases the successors of rows: the writes of `LosslessRows`."""

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
        self._rows, self._side, self._on_host = rows, side, on_host
        self.single = SingleLinker(addresses, side, self.observations)
        self.within = BatchLinker(layout, addresses, side.device, on_host=on_host)
        self._stored = [f.path for f in layout.stored.fields]
        self._keys = [f.key for f in layout.stored.fields]
        self._given = [(f.path, f.key) for f in layout.given.fields]
        # for each stored leaf its number among the given ones
        numbers = {path: number for number, (path, _) in enumerate(self._given)}
        self._numbers = [numbers.get(path) for path in self._stored]
        self._unlinked: dict[int, _Batch] = {}
        self.misses = layout.may_miss

    def write(
        self,
        rows: slice | torch.Tensor,
        numbers: range,
        cells: TensorDictBase | Leaves | ValidatedLeaves,
        back: Back,
        *,
        proved: bool = False,
    ) -> None:
        """Writes a batch into a span; all checks precede the first changed byte.

        `proved` is as of `BatchLinker.link`.
        """
        place = rows if isinstance(rows, slice) else rows.cpu().numpy()
        leaves, observes = self._leaves(cells, len(back))
        observed = self._observed_in(leaves, len(back), observes)
        new = self.addresses.are_new(numbers)
        links = self.within.link(place, leaves, back, observed, proved=proved, new=new)
        addresses, unlinked = links.addresses, links.unlinked
        lane = numbers.start >> LANE_SHIFT
        slots = self._slots_for(lane, place, links.owned, len(unlinked))
        if unlinked.size:
            self.observations.fill(slots, numbers.start + unlinked, leaves, unlinked)
            addresses[unlinked] = self.addresses.of_slots(slots)
        if not self.layout.apart:
            # the address is written with its row, so that no reader sees one without the other
            leaves[SUCCESSOR] = addresses if self._on_host else torch.from_numpy(addresses)
        self._rows.put(rows, self._to_put(cells, leaves))
        if self.layout.apart:
            self.addresses.set(place, addresses)
        elif not self._on_host:
            self.addresses.values[place] = addresses
        self.misses |= observed is not None and not observed.all()
        # only now: a write that fails above leaves nothing to link
        self._unlinked[lane] = _Batch(place, numbers, back, links.heads)

    def note_unlinked(self, place: slice, numbers: range, back: Back) -> None:
        """Records a row that was written otherwise, to which older ones are to be linked."""
        self._unlinked[numbers.start >> LANE_SHIFT] = _Batch(place, numbers, back)

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
        self._side.rebuild(lane, self.addresses.slots_of_lane(lane))

    def _link_batch(self, batch: _Batch) -> None:
        # rows below this id are overwritten by the batch itself
        oldest = batch.numbers.stop - self.addresses.lane_rows
        place, usual = batch.place, self._on_host and not self.layout.has_steps
        if usual and len(batch.back) == 1 and isinstance(place, slice):
            number, distance = batch.numbers.start, int(batch.back[0])
            self.single.link(place.start, number, distance, missing=self.misses)
            return
        if self.within.reach == 1:
            rows = heads_of(batch.back) if batch.heads is None else batch.heads
            if usual and rows.size == 1 and isinstance(place, slice):
                row = int(rows[0])
                before = batch.numbers.start + row - int(batch.back[row])
                if before >= oldest:
                    self.single.link_to(place.start + row, before, missing=self.misses)
                return
            numbers = batch.numbers.start + rows - batch.back[rows]
            rows, numbers = rows[numbers >= oldest], numbers[numbers >= oldest]
            if rows.size:
                self.link(positions_at(batch.place, rows), numbers, 1, missing=self.misses)
            return
        rows, distances = np.arange(len(batch.back)), batch.back.astype(np.int64)
        numbers = batch.numbers.start + rows
        # n-step rows: `reach` steps back along the links, as their next observation is that far
        # away
        for step in range(1, self.within.reach + 1):
            numbers = numbers - distances
            there = (distances > 0) & (numbers >= oldest)
            rows, numbers = rows[there], numbers[there]
            older = numbers < batch.numbers.start
            missing = self.misses and step == 1
            self.link(positions_at(batch.place, rows[older]), numbers[older], step, missing=missing)
            # without the links of older rows the walk ends after one step
            if not rows.size or self.back is None:
                break
            distances = self.back[self.addresses.places(numbers)].astype(np.int64)

    def clear(self) -> None:
        """Implements `LosslessRows.clear`."""
        self._unlinked.clear()
        count = self.addresses.count
        self.addresses.set(np.arange(count), np.zeros(count, dtype=np.int32))
        for lane in range(self._side.lanes):
            self._side.rebuild(lane, np.empty(0, dtype=np.int64))

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

    def _leaves(
        self, cells: TensorDictBase | Leaves | ValidatedLeaves, count: int
    ) -> tuple[dict[KeyPath, Any], bool]:
        """The leaves of a batch, on the CPU as arrays, and whether it has next observations."""
        if isinstance(cells, ValidatedLeaves):
            return {path: cells[key] for path, key in self._given}, True
        leaves: dict[KeyPath, Any] = dict(leaves_of(cells))
        fields, observes = self.layout.coming(leaves)
        match_leaves(leaves, fields, torch.Size([count]), exact=True)
        if self._on_host:
            leaves = {path: bits(leaf) for path, leaf in leaves.items()}
        return leaves, observes

    def _to_put(
        self, cells: TensorDictBase | Leaves | ValidatedLeaves, leaves: dict[KeyPath, Any]
    ) -> ValidatedLeaves | list[Any]:
        """The leaves of stored rows in their order, with the addresses."""
        stored = [leaves[path] for path in self._stored]
        if not isinstance(cells, ValidatedLeaves) or not cells.tensors:
            return stored
        # a tensor says where it is in memory in a tenth of the time that an array takes
        found = ValidatedLeaves(zip(self._keys, stored, strict=True))
        found.tensors = [
            torch.from_numpy(leaves[SUCCESSOR]) if number is None else cells.tensors[number]
            for number in self._numbers
        ]
        return found

    def _observed_in(
        self, leaves: dict[KeyPath, Any], count: int, observes: bool
    ) -> NDArray[np.bool_] | None:
        """Which rows of a batch have a next observation, bool `[n]`; None if all have one."""
        if not observes:
            return np.zeros(count, dtype=np.bool_)
        mark = None if self.layout.has_mark else leaves.get(NEXT_MISSING)
        return None if mark is None else ~bits(mark)

    def _slots_for(self, lane: int, place: slice | Ints, owned: Ints, count: int) -> Ints:
        """Takes slots for `count` rows, first those of the rows that are overwritten."""
        # secured before anything is released: a full disk leaves the old rows whole
        self._side.make_room(lane, max(0, count - len(owned)), self.addresses)
        if not owned.size:
            return self._side.take(lane, count)
        there = positions_at(place, owned)
        freed = self.addresses.slots(self.addresses.values[there])
        # no row names a slot any more before it is given back
        self._rows.touches += 1
        self.addresses.set(there, np.zeros(len(freed), dtype=np.int32))
        return self._side.exchange(lane, freed, count)

    def link(self, positions: Ints, numbers: Ints, step: int, *, missing: bool) -> None:
        """Links older rows to new rows whose observation equals their next observation."""
        table = self.addresses
        places = table.places(numbers)
        addresses = table.values[places].astype(np.int64)
        fits = table.in_slots(addresses)
        # the slot's owner tells whether the row is still the one meant, or was overwritten
        fits[fits] = self._side.owners[table.slots(addresses[fits])] == numbers[fits]
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
        self._side.release_each(places[addresses > 0] // table.lane_rows, freed)

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
            slots = self._side.take(lane, int(here.sum()))
            # rows that have none are given theirs by the caller
            following = np.where(
                addresses[here] > 0, self.addresses.rows(addresses[here]), places[here]
            )
            leaves = self.observations.stored(following)
            self.observations.fill(slots, numbers[here], leaves, np.arange(len(slots)))
            self.addresses.set(places[here], self.addresses.of_slots(slots))
