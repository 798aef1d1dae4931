"""Count, mean and squared deviations of rows, combined from parts; private or shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_tensordict import CPU
from rl_tensordict.types import Floats

if TYPE_CHECKING:
    from rl_slabs import Lane, Lanes, LazyFile

ROWS = 4  # of a lane: a reader can copy the newest row while the next one is written
FIELD = "moments"


@dataclass(frozen=True)
class Moments:
    """Running moments of the rows of one leaf, in double precision."""

    count: float  # how many rows, or what is left of that number after decay
    mean: Floats  # of the rows, in the shape of one
    squares: Floats  # sum of the squared distances from the mean, likewise

    @classmethod
    def none(cls, shape: Sequence[int]) -> Moments:
        """Moments of no rows; `shape` is that of one row."""
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Moments of rows ``[R, ...]``, R at least 1."""
        exact, count = rows.astype(np.float64, copy=False), len(rows)
        mean = np.asarray(np.add.reduce(exact) / count)
        return cls(float(count), mean, np.asarray(np.add.reduce(np.square(exact - mean))))

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """Moments of the rows of all parts, at least one part."""
        # With n the sum of the counts: mean = Σ nᵢ meanᵢ / n, and squares = Σ squaresᵢ + nᵢ (meanᵢ
        # - mean)², as Chan, Golub and LeVeque give it.
        full = [part for part in parts if part.count]
        if len(full) < 2:
            return full[0] if full else parts[0]
        count = sum(part.count for part in full)
        # shifted by the first mean: a mean far from 0 would cancel the digits of small differences
        shifts = [part.mean - full[0].mean for part in full]
        shift, squares = np.zeros_like(full[0].mean), np.zeros_like(full[0].mean)
        for part, distance in zip(full, shifts, strict=True):
            shift = shift + part.count / count * distance
        for part, distance in zip(full, shifts, strict=True):
            squares = squares + part.squares + part.count * np.square(distance - shift)
        return cls(count, np.asarray(full[0].mean + shift), np.asarray(squares))

    def joined(self, other: Moments) -> Moments:
        """Moments of these rows and others."""
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        distance = other.mean - self.mean
        share = other.count / count
        squares = self.squares + other.squares + np.square(distance) * (self.count * share)
        return Moments(count, np.asarray(self.mean + distance * share), np.asarray(squares))

    def decayed(self, decay: float) -> Moments:
        """Moments in which every row has `decay` times its weight."""
        if decay == 1:
            return self
        return Moments(self.count * decay, self.mean, self.squares * decay)

    @property
    def std(self) -> Floats:
        """Standard deviation of the rows, in the shape of one; 0 without any."""
        found: Floats = np.sqrt(self.squares / max(self.count, np.finfo(np.float64).tiny))
        return found

    def packed(self) -> Floats:
        """Count, mean and squares in one row, ``[1 + 2 F]``."""
        return np.concatenate([[self.count], self.mean.ravel(), self.squares.ravel()])

    @classmethod
    def unpacked(cls, row: Floats, shape: Sequence[int]) -> Moments:
        """The moments that `packed` wrote; `shape` is that of a leaf."""
        size = len(row) // 2
        mean, squares = row[1 : 1 + size].reshape(shape), row[1 + size :].reshape(shape)
        return cls(float(row[0]), mean.copy(), squares.copy())


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

    def __init__(self, file: LazyFile, num_lanes: int) -> None:
        self._file, self._num_lanes = file, num_lanes
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
        return type(self), (self._file, self._num_lanes)

    def _allocate(self, shape: Sequence[int]) -> Lanes:
        lanes = self._open()
        if lanes is None or lanes.slab.about != str(list(shape)):
            from rl_slabs import Lanes, RowSchema, Slab

            schema = RowSchema({FIELD: (torch.float64, (1 + 2 * math.prod(shape),))})
            # a process that comes second gets the memory that the first one made
            slab = Slab.in_file(
                self._file,
                schema,
                ROWS * self._num_lanes,
                lanes=self._num_lanes,
                about=str(list(shape)),
            )
            self._lanes = lanes = Lanes(slab)
        return lanes

    def _open(self) -> Lanes | None:
        """The lanes, None before the first `put` of any process."""
        if self._lanes is None and self._file.filled:
            from rl_slabs import Lanes, Slab

            self._lanes = Lanes(Slab.over(self._file))
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
            newest = torch.tensor(
                [window.first[n] + window.counts[n] - 1 for n in used], device=CPU
            )
            rows = table[lanes.rows(newest).numpy()] if used else []
            # retry if a writer has overwritten a row while it was copied
            if not used or bool(lanes.accept(newest).all()):
                return [Moments.unpacked(row, shape) for row in rows]
