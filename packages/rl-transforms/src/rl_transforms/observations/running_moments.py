"""Storage for the moments of a leaf: private, or in memory that several processes share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rl_transforms.observations.moments import Moments

if TYPE_CHECKING:
    from rl_slabs import Lane, Lanes, LazySlab

ROWS = 4  # of a lane: a reader can copy the newest row while the next one is written
FIELD = "moments"


class LocalMoments:
    """Moments in private memory."""

    def __init__(self) -> None:
        self.part: Moments | None = None

    def to_update(self, shape: Sequence[int]) -> Moments:
        """The moments to update; `shape` is that of a row."""
        return Moments.none(shape) if self.part is None else self.part

    def put(self, part: Moments) -> None:
        """Replace the moments."""
        self.part = part

    def all(self) -> Moments | None:
        """All that is known, None without any row."""
        return self.part


class SharedMoments:
    """Moments in shared memory: every writer updates a part, readers merge all parts."""

    # Each part is a lane with one writer, and every update is published as a whole row, so there is
    # no lock to wait for. The part of a process that died stays; the process that claims its lane
    # continues from it. A copy of this object, pickled or not, writes a part of its own.

    def __init__(self, memory: LazySlab) -> None:
        self._memory = memory
        self._lanes: Lanes | None = None
        self._newest: tuple[Lane, Moments] | None = None  # the moments put last, and their lane

    @property
    def part(self) -> Moments | None:
        """The moments that this process has put, None without any."""
        lanes = self._open()
        held = None if lanes is None else lanes.held()
        if lanes is None or held is None:
            return None
        return next(iter(self._read(lanes, held.number)), None)

    def to_update(self, shape: Sequence[int]) -> Moments:
        """The moments to update, including those left by a process that died."""
        lanes = self._allocate(shape)
        lane = lanes.claim()
        if self._newest is not None and self._newest[0] is lane:
            return self._newest[1]  # no other process writes there
        parts = self._read(lanes, lane.number)
        return parts[0] if parts else Moments.none(shape)

    def put(self, part: Moments) -> None:
        """Publish new moments of this process."""
        lanes = self._allocate(part.mean.shape)
        lane = lanes.claim()
        row = lane.reserve(1).rows
        lanes.slab.columns()[FIELD][row] = part.packed()
        lane.publish(1)
        self._newest = (lane, part)

    def all(self) -> Moments | None:
        """All that is known, None without any row."""
        lanes = self._open()
        parts = [] if lanes is None else self._read(lanes)
        return Moments.merged(parts) if parts else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._memory,)

    def _allocate(self, shape: Sequence[int]) -> Lanes:
        lanes = self._open()
        if lanes is None or lanes.slab.about != str(list(shape)):
            from rl_slabs import RowSchema

            schema = RowSchema({FIELD: (torch.float64, (1 + 2 * math.prod(shape),))})
            # a process that comes second gets the memory that the first one made
            self._memory.make(schema, ROWS * self._memory.lanes, about=str(list(shape)))
            lanes = self._open()
        assert lanes is not None
        return lanes

    def _open(self) -> Lanes | None:
        """The lanes, None before the first `put` of any process."""
        if self._lanes is None:
            from rl_slabs import Lanes

            slab = self._memory.get()
            self._lanes = None if slab is None else Lanes(slab)
        return self._lanes

    def _read(self, lanes: Lanes, only: int | None = None) -> list[Moments]:
        """The newest row of each lane, or of the lane `only`."""
        shape = [int(size) for size in lanes.slab.about.strip("[]").split(",") if size]
        table = lanes.slab.columns()[FIELD]
        while True:
            window = lanes.window()
            used = [lane for lane, count in enumerate(window.counts) if count]
            if only is not None:
                used = [only] if only in used else []
            newest = torch.tensor([window.first[n] + window.counts[n] - 1 for n in used])
            rows = table[lanes.rows(newest).numpy()] if used else []
            # retry if a writer has overwritten a row while it was copied
            if not used or bool(lanes.accept(newest).all()):
                return [Moments.unpacked(row, shape) for row in rows]
