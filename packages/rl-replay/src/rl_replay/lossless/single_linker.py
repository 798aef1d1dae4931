"""Slots and links of single rows on the host, without arrays of one element."""

from __future__ import annotations

from rl_replay.lossless.addresses import Addresses
from rl_replay.lossless.observations import Observations
from rl_replay.lossless.overflow import OverflowTable


class SingleLinker:
    """What `SuccessorLinker` does for the rows of a batch, for one row."""

    def __init__(
        self, addresses: Addresses, side: OverflowTable, observations: Observations
    ) -> None:
        self._addresses, self._side, self._observations = addresses, side, observations

    def owned_slot(self, position: int) -> int | None:
        """The slot that the row at a position names."""
        address = int(self._addresses.values[position])
        return self._addresses.slots(address) if self._addresses.in_slots(address) else None

    def release(self, lane: int, position: int, slot: int) -> None:
        """Releases the slot of a row that is overwritten."""
        # no row names a slot any more before it is given back
        self._addresses.values[position] = 0
        self._side.release_one(lane, slot)

    def link(self, position: int, number: int, distance: int, *, missing: bool) -> None:
        """Links the row that a new row continues, if its next observation is equal to it."""
        before = number - distance
        # rows as old as that are overwritten by the new one
        if distance > 0 and before > number - self._addresses.lane_rows:
            self.link_to(position, before, missing=missing)

    def link_to(self, position: int, before: int, *, missing: bool) -> None:
        """Links the live row `before` to a new row, if its next observation is equal to it."""
        table = self._addresses
        place = table.place(before)
        address = int(table.values[place])
        slot = table.slots(address)
        if address == 0 and not missing:
            return
        # the slot's owner tells whether the row is still the one meant, or was overwritten
        if address and (slot < 0 or self._side.owners[slot] != before):
            return
        if address and not self._observations.is_equal(position, slot):
            return
        table.record_one(position - place)
        # the new address first: a released slot may be taken at once
        table.values[place] = table.of_rows(position)
        if address:
            self._side.release_one(place // table.lane_rows, slot)
