"""Writes batches of rows so that each observation is stored once.

Next observations that other rows of the batch hold are found there; the others get overflow slots,
unless `SuccessorLinker` later finds them in rows of other batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout.internals import run_compiled
from rl_layout.keys import NEXT_MISSING, STEPS_TO_NEXT_OBS
from rl_replay.data.bits import same_bits, words
from rl_replay.lossless.layout import SUCCESSOR, LosslessLayout
from rl_replay.lossless.linker import Addresses, Back, SuccessorLinker, heads_of, positions_at
from rl_replay.lossless.observations import (
    bits,
    equal_within,
    equal_within_on_device,
    most_below,
    successors,
)
from rl_slabs import Rows
from rl_slabs.internals import LANE_SHIFT, Leaves, ValidatedLeaves, leaves_of, match_leaves
from rl_tensordict.types import Ints, KeyPath

LEAST_ROWS = 512
"""Fewer rows are linked by numpy in the time that numba takes to be called."""

ROWS_BEFORE_COMPILING = 1 << 20
"""So many rows, in calls of at least `LEAST_ROWS`, come first: small buffers never wait."""

_NUMBA = "rl_replay.lossless.numba_links"


class BatchLinks(NamedTuple):
    """What rows of a batch name, and what the rows that they overwrite named."""

    addresses: NDArray[np.int32]  # [n], of rows; to be filled in for those of `unlinked`
    unlinked: Ints  # Rows that need a slot
    owned: Ints  # Rows in whose place a row is that has a slot
    heads: Ints  # Rows that continue one from before the batch


class BatchLinker:
    """Links the rows of a batch to each other; `SuccessorLinker` links those of several batches."""

    def __init__(
        self,
        layout: LosslessLayout,
        addresses: Addresses,
        device: torch.device,
        *,
        on_host: bool,
    ) -> None:
        self.layout, self.addresses = layout, addresses
        self._device, self._on_host = device, on_host
        self._uncompiled = ROWS_BEFORE_COMPILING

    def link(
        self,
        place: slice | Ints,
        leaves: dict[KeyPath, Any],
        back: Back,
        observed: NDArray[np.bool_] | None,
        *,
        proved: bool = False,
        new: bool = False,
    ) -> BatchLinks:
        """Finds the addresses of rows about to be written at a place, `[n]`.

        `proved` says that the observations of all rows that continue another one of the batch equal
        its next ones; `new` that no rows were there before, so that no page of a file is read to
        look at what they name.
        """
        if observed is None and len(back) >= LEAST_ROWS and back.dtype == np.int32:
            found = self._by_loop(place, leaves, back, proved=proved, new=new)
            if found is not None:
                return found
        return self._by_arrays(place, leaves, back, observed, new=new)

    def _by_loop(
        self,
        place: slice | Ints,
        leaves: dict[KeyPath, Any],
        back: Back,
        *,
        proved: bool,
        new: bool,
    ) -> BatchLinks | None:
        """The links that a compiled loop finds; None without numba, or where it knows no answer."""
        if not self._on_host or self.layout.has_steps:
            return None
        if self._uncompiled > 0:
            self._uncompiled -= len(back)
            return None
        table, count = self.addresses, len(back)
        apart, addresses = np.zeros(count, np.bool_), np.empty(count, np.int32)
        rows, counts = np.empty((3, count), np.int64), np.empty(4, np.int64)
        for pair in () if proved else self.layout.pairs:
            sides = words(leaves[pair.root]), words(leaves[pair.next])
            if not run_compiled(_NUMBA, "mark_apart", back, *sides, apart):
                return None
        start = place.start if isinstance(place, slice) else 0
        given = back, apart, start, new, table.values[place], table.first_slot
        if not run_compiled(_NUMBA, "link_rows", *given, addresses, rows, counts):
            return None
        slots, owned, heads, distance = counts.tolist()
        if isinstance(place, slice) and distance > 0:
            table.record_one(distance)
        elif distance:
            self._record(place, addresses)
        return BatchLinks(addresses, rows[0, :slots], rows[1, :owned], rows[2, :heads])

    def _record(self, place: slice | Ints, addresses: NDArray[np.int32]) -> None:
        """Records links over several distances, or of rows that do not lie one after the other."""
        table, rows = self.addresses, addresses.nonzero()[0]
        following = table.rows(addresses[rows].astype(np.int64))
        if not isinstance(place, slice):
            following = place[following]
            addresses[rows] = table.of_rows(following)
        table.record(table.distances(positions_at(place, rows), following))

    def _by_arrays(
        self,
        place: slice | Ints,
        leaves: dict[KeyPath, Any],
        back: Back,
        observed: NDArray[np.bool_] | None,
        *,
        new: bool = False,
    ) -> BatchLinks:
        """`link` in numpy, also of n-step rows and of rows on a device."""
        joined = self._joined(place, back) if observed is None else None
        if joined is not None and isinstance(place, slice):
            ahead = len(back) - len(joined)
            linked = self._linked_neighbours(joined, ahead, leaves)
            # each row that is not linked gets a slot
            first = self.addresses.of_rows(place.start + ahead)
            addresses = np.arange(first, first + len(back), dtype=np.int32)
            distances: Any = np.full(1, ahead)
        else:
            target, linked = self._within(leaves, back.astype(np.int64), observed)
            following = positions_at(place, target)
            addresses = np.where(linked, self.addresses.of_rows(following), 0).astype(np.int32)
            positions = positions_at(place, np.arange(len(back)))
            distances = self.addresses.distances(positions, following)[linked]
        self.addresses.record(distances)
        unlinked = (~linked if observed is None else observed & ~linked).nonzero()[0]
        former = self.addresses.values[:0] if new else self.addresses.values[place]
        owned = self.addresses.in_slots(former).nonzero()[0]
        return BatchLinks(addresses, unlinked, owned, heads_of(back))

    def _joined(self, place: slice | Ints, back: Back) -> NDArray[np.bool_] | None:
        """Which rows have their successor in the batch, if it is equally far from all of them.

        Bool, for all but the last rows, which have none; None where the distance differs.
        """
        if not self._on_host or self.layout.has_steps or not isinstance(place, slice):
            return None
        # the first rows may continue others from before the batch, at any distance
        shift = int(back[len(back) // 2 :].max())
        if not 0 < shift < len(back):
            return None
        head, rest = back[:shift], back[shift:]
        if ((head > 0) & (head <= np.arange(shift))).any():
            return None
        joined: NDArray[np.bool_] = rest == shift
        # below 0 is padding
        others = np.count_nonzero(rest) - np.count_nonzero(joined)
        return joined if not others or others == np.count_nonzero(rest < 0) else None

    def _linked_neighbours(
        self, joined: NDArray[np.bool_], ahead: int, leaves: dict[KeyPath, Any]
    ) -> NDArray[np.bool_]:
        """Which rows are linked to their successor: its observation is equal, bit for bit."""
        count = len(joined)
        linked = np.zeros(count + ahead, dtype=np.bool_)
        for pair in self.layout.pairs:
            joined &= same_bits(leaves[pair.next][:count], leaves[pair.root][ahead:])
        linked[:count] = joined
        return linked

    def _within(
        self, leaves: dict[KeyPath, Any], back: Ints, observed: NDArray[np.bool_] | None
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The successor of each row in the batch, and whether its observation is equal."""
        steps = None
        if self.layout.has_steps:
            steps = bits(leaves[STEPS_TO_NEXT_OBS]).reshape(-1)
            # a corrupt step count must not make every later link walk the whole ring: a lane does
            # not hold two rows that are as many steps apart as it has rows
            far = most_below(steps, self.addresses.lane_rows)
            self.addresses.reach = max(self.addresses.reach, far)
        target = successors(back, steps)
        if observed is None:
            observed = np.ones(len(back), dtype=np.bool_)
        # without a next observation there are no bits to compare: the markers decide
        linked = (target >= 0) & ~observed
        if steps is not None:
            linked &= steps == 1
        if not observed.any() or not (target >= 0).any():
            return target, linked
        pairs = self.layout.pairs
        sides = [[leaves[p.root] for p in pairs], [leaves[p.next] for p in pairs]]
        wanted = np.where(observed, target, -1)
        if self._on_host:
            return target, linked | equal_within(sides[0], sides[1], wanted)
        there = [[leaf.to(self._device) for leaf in side] for side in sides]
        return target, linked | equal_within_on_device(there[0], there[1], wanted)


class LosslessWriter:
    """Writes batches of `LosslessRows`."""

    def __init__(self, linker: SuccessorLinker, rows: Rows, *, on_host: bool) -> None:
        layout, self._addresses = linker.layout, linker.addresses
        self._layout, self._linker, self._rows = layout, linker, rows
        self._side, self._on_host = linker.side, on_host
        self._batch = BatchLinker(layout, linker.addresses, linker.side.device, on_host=on_host)
        self._stored = [f.path for f in layout.stored.fields]
        self._keys = [f.key for f in layout.stored.fields]
        self._given = [(f.path, f.key) for f in layout.given.fields]
        # for each stored leaf its number among the given ones
        numbers = {path: number for number, (path, _) in enumerate(self._given)}
        self._numbers = [numbers.get(path) for path in self._stored]
        nexts = [pair.next for pair in layout.pairs]
        self._nexts = [*zip(nexts, linker.observations.keys, strict=True)]

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
        new = self._addresses.are_new(numbers)
        links = self._batch.link(place, leaves, back, observed, proved=proved, new=new)
        addresses, unlinked = links.addresses, links.unlinked
        lane = numbers.start >> LANE_SHIFT
        slots = self._slots_for(lane, place, links.owned, len(unlinked))
        if unlinked.size:
            self._fill(slots, numbers.start + unlinked, leaves, unlinked)
            addresses[unlinked] = self._addresses.of_slots(slots)
        if not self._layout.apart:
            # the address is written with its row, so that no reader sees one without the other
            leaves[SUCCESSOR] = addresses if self._on_host else torch.from_numpy(addresses)
        self._rows.put(rows, self._to_put(cells, leaves))
        if self._layout.apart:
            self._addresses.set(place, addresses)
        elif not self._on_host:
            self._addresses.values[place] = addresses
        self._addresses.misses |= observed is not None and not observed.all()
        # only now: a write that fails above leaves nothing to link
        self._linker.note_unlinked(place, numbers, back, links.heads)

    def _leaves(
        self, cells: TensorDictBase | Leaves | ValidatedLeaves, count: int
    ) -> tuple[dict[KeyPath, Any], bool]:
        """The leaves of a batch, on the CPU as arrays, and whether it has next observations."""
        if isinstance(cells, ValidatedLeaves):
            return {path: cells[key] for path, key in self._given}, True
        leaves: dict[KeyPath, Any] = dict(leaves_of(cells))
        fields, observes = self._layout.coming(leaves)
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
        # the address of a tensor is read in a tenth of the time of that of an array
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
        mark = None if self._layout.has_mark else leaves.get(NEXT_MISSING)
        return None if mark is None else ~bits(mark)

    def _slots_for(self, lane: int, place: slice | Ints, owned: Ints, count: int) -> Ints:
        """Takes slots for `count` rows, first those of the rows that are overwritten."""
        # secured before anything is released: a full disk leaves the old rows whole
        self._side.make_room(lane, max(0, count - len(owned)), self._addresses.slots_of_lane)
        if not owned.size:
            return self._side.take(lane, count)
        there = positions_at(place, owned)
        freed = self._addresses.slots(self._addresses.values[there])
        # no row names a slot any more before it is given back
        self._rows.touches += 1
        self._addresses.set(there, np.zeros(len(freed), dtype=np.int32))
        return self._side.exchange(lane, freed, count)

    def _fill(self, slots: Ints, numbers: Ints, leaves: dict[KeyPath, Any], rows: Ints) -> None:
        """Copies the next observations of some rows of a batch into slots of their own."""
        if self._on_host:
            found = {key: leaves[path][rows] for path, key in self._nexts}
        else:
            found = self._linker.observations.given(self._layout.pairs, leaves, rows)
        self._side.put(slots, numbers, found)
