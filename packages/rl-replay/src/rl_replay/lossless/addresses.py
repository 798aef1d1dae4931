"""The address of each row's next observation: of no row, of a row, or of an overflow slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.internals import LANE_MASK, LANE_SHIFT
from rl_tensordict.types import Ints

AnyAddresses = NDArray[np.integer[Any]]

_FEW_DISTANCES = 64


class Addresses:
    """One int32 for each of `count` rows: 0 nowhere, `position + 1` a row, above `count` a slot.

    Attributes:
        values: The addresses, int32 `[rows]`: live where rows are on the host, else a copy there.
    """

    def __init__(
        self, live: torch.Tensor, *, lanes: int, alone: bool, on_host: bool | None = None
    ) -> None:
        self.count, self.lane_rows = len(live), len(live) // lanes
        self.first_slot = self.count + 1
        self._live = live
        self._on_host = bool(live.is_cpu) if on_host is None else on_host
        self.values: NDArray[np.int32] = (
            live.numpy() if self._on_host else np.zeros(self.count, dtype=np.int32)
        )
        # the distances from rows to the rows that they name; None if another writer may have used
        # others, or if they are too many to scan
        self._distances: set[int] | None = set() if alone else None

    def set(self, positions: Ints, addresses: AnyAddresses) -> None:
        """Writes the addresses of some rows."""
        self.values[positions] = addresses
        if not self._on_host:
            device, places = self._live.device, torch.from_numpy(positions)
            values = torch.from_numpy(addresses.astype(np.int32))
            self._live[places.to(device)] = values.to(device)

    def of_slots(self, slots: Ints) -> Ints:
        """The addresses of overflow slots."""
        return slots + self.first_slot

    def in_slots(self, addresses: AnyAddresses) -> NDArray[np.bool_]:
        """Which addresses are of slots."""
        return addresses >= self.first_slot

    def slots(self, addresses: AnyAddresses) -> Ints:
        """The slots at addresses of slots."""
        return addresses.astype(np.int64) - self.first_slot

    def slots_of_lane(self, lane: int) -> Ints:
        """The slots that rows of a lane name."""
        addresses = self.values[lane * self.lane_rows : (lane + 1) * self.lane_rows]
        return self.slots(addresses[self.in_slots(addresses)])

    def places(self, numbers: Ints) -> Ints:
        """The positions of row ids."""
        lanes = (numbers >> LANE_SHIFT) * self.lane_rows
        return lanes + (numbers & LANE_MASK) % self.lane_rows

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
        away = np.where(addresses > 0, self.distances(positions, addresses - 1), 0)
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

    def predecessors_of(self, positions: Ints, numbers: Ints) -> tuple[Ints, Ints]:
        """The rows that name some rows: their positions and row ids."""
        if self._distances is None:
            # too many distances, or unknown ones: all addresses are searched
            inside = (self.values > 0) & (self.values < self.first_slot)
            places = np.flatnonzero(inside & np.isin(self.values - 1, positions))
            order, addresses = np.argsort(positions), self.values[places].astype(np.int64) - 1
            later = numbers[order][np.searchsorted(positions[order], addresses)]
            return places, later - self.distances(places, addresses) % self.lane_rows
        found = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
        for distance in self._distances:
            places = (positions - distance) % self.count
            # address = position + 1
            names = self.values[places] == positions + 1
            found.append((places[names], numbers[names] - distance % self.lane_rows))
        places, earlier = (np.concatenate(part) for part in zip(*found, strict=True))
        return places, earlier
