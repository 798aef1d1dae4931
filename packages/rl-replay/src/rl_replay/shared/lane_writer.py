"""The state of a lane's writer, and how it learns the rows that other processes wrote."""

from __future__ import annotations

import numpy as np
import torch

from rl_replay.linking.links import Links
from rl_replay.linking.markers import MarkerColumns
from rl_replay.shared.ring import SharedRing
from rl_replay.storages.row_store import RowStore
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs.internals import LANE_SHIFT


class LaneWriter:
    """The open trajectories of a lane, in the process that writes it."""

    epoch = 0

    def __init__(self, lane: int, links: Links, index: TrajectoryIndex) -> None:
        self.lane = lane
        self.links = links
        self._index = index
        self.forget()

    def forget(self) -> None:
        """Drops all knowledge, so that the whole lane is read again."""
        self.links.forget()
        self._end = self._floor = -1

    def knows(self, published: int, floor: int) -> bool:
        """Whether no other process wrote to the lane or dropped rows of it."""
        base = self.lane << LANE_SHIFT
        known = base + published == self._end and base + floor == self._floor
        return known and self._index.reaches(self._end)

    def doubt(self) -> None:
        """Let the lane be learned anew, unless `took_in` is told what was published."""
        self._end = -1

    def catch_up(self, ring: SharedRing, store: RowStore, stride: int) -> None:
        """Reads the rows that other processes wrote since; the calling thread holds the lane."""
        # Costs what the new rows cost: nothing where no other process had the lane.
        low, end, floor = ring.bounds(self.lane)
        back = self.links.back
        self._index.catch_up_lane(self.lane, back, low, end)
        if not low <= self._end <= end:
            self.links.forget()
        first = self._end if low <= self._end <= end else low
        if floor != self._floor:
            self.links.drop_before(floor)
        if first < end:
            numbers = torch.arange(first, end)
            positions = ring.positions(numbers)
            keys, distances = self.links.keys, back[positions.numpy()]
            if keys.numbered:
                marks = MarkerColumns.of(store.read(positions, keys=list(keys.columns)), keys)
                self.links.observe_external(marks, distances, range(first, end))
            else:
                self.links.forget()
                observed = [key for pair in keys.observations for key in pair]
                if observed and stride <= len(numbers):
                    last = store.read(positions[-stride:], keys=[*keys.columns, *observed])
                    self.links.observe_tail(last, distances[-stride:])
        self._end, self._floor = end, floor

    def took_in(self, first: int, back: np.ndarray) -> None:
        """Indexes rows that this writer has published."""
        self._index.append(first, back)
        self._end = first + len(back)  # last: what was interrupted is learned anew
