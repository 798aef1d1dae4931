"""Where next observations are: the address of each row's, which is of a row or of a slot."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.internals import LANE_MASK, LANE_SHIFT
from rl_tensordict.types import Ints

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
        self, live: torch.Tensor, *, lanes: int, alone: bool, on_host: bool | None = None
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

    def places(self, numbers: Ints) -> Ints:
        """The positions of row ids."""
        lanes = (numbers >> LANE_SHIFT) * self.lane_rows
        return lanes + (numbers & LANE_MASK) % self.lane_rows

    def are_new(self, numbers: range) -> bool:
        """Whether no other rows were at the positions of some rows before."""
        return (numbers.stop - 1) & LANE_MASK < self.lane_rows

    def place(self, number: int) -> int:
        """The position of one row id."""
        return (number >> LANE_SHIFT) * self.lane_rows + (number & LANE_MASK) % self.lane_rows

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
