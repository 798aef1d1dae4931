"""Random slices: uniform over trajectories, or uniform over steps."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch

from rl_replay.samplers.slice_layout import SpanLimits
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Window
from rl_tensordict.types import Ints

By = Literal["trajectory", "step"]

_LARGE = 1 << 62


class SliceBounds(NamedTuple):
    """Slices of trajectories."""

    slots: Ints  # int64 [n], the trajectories
    offsets: Ints  # int64 [n], first row of the slice, counted from the oldest of its trajectory
    lengths: Ints  # int64 [n], rows of each slice


def by_trajectory(
    index: TrajectoryIndex,
    count: int,
    length: int,
    *,
    minimum: int = 1,
    reach: SpanLimits | None = None,
    generator: torch.Generator | None = None,
) -> SliceBounds:
    """Draws trajectories uniformly, then a place in each."""
    random = random_numbers((2, count), generator)
    slots = index.draw_by(random[0], minimum, generator)
    return SliceBounds(slots, *place_in(index.lengths_of(slots), length, random[1], reach))


def by_step(
    index: TrajectoryIndex,
    count: int,
    length: int,
    *,
    minimum: int = 1,
    reach: SpanLimits | None = None,
    generator: torch.Generator | None = None,
) -> SliceBounds:
    """Draws uniformly among all places that a slice of this length can have."""
    # A trajectory of n rows has one at each step from which the slice continues: n
    # - length + 1; a shorter one has one, its first. With reach there are left more before these
    # and up to right after, of which the last is the last row. So where left and right are length
    # - 1 every row is in length places: all are drawn equally often.
    reach = reach or SpanLimits()
    parts: list[tuple[Ints, Ints, Ints]] = []
    missing, tries = count, 2 * count  # mostly one round is enough
    while missing > 0 and tries <= 2 * max(len(index), count):
        window = index.window()
        drawn = torch.randint(candidates(index, window, reach), (tries,), generator=generator)
        slots, begins, totals = begins_among(index, window, drawn.numpy(), length, minimum, reach)
        parts.append((slots[:missing], begins[:missing], totals[:missing]))
        missing -= len(parts[-1][0])
        tries *= 2
    if missing > 0:
        slots, totals, ends = begins_of_all(index, length, minimum, reach)
        drawn = torch.randint(int(ends[-1]), (missing,), generator=generator)
        which, begins = begin_at(ends, drawn.numpy(), reach)
        parts.append((slots[which], begins, totals[which]))
    slots, begins, totals = (np.concatenate(part) for part in zip(*parts, strict=True))
    return SliceBounds(slots, *inside(begins, totals, length))


def random_numbers(shape: tuple[int, ...], generator: torch.Generator | None) -> Ints:
    """Random numbers so large that their remainders are uniform but for 2**-40 or so."""
    numbers: Ints = torch.randint(_LARGE, shape, generator=generator).numpy()
    return numbers


def place_in(
    totals: Ints, length: int, random: Ints, reach: SpanLimits | None = None
) -> tuple[Ints, Ints]:
    """Choose where a slice begins in each of some trajectories, every place equally likely."""
    # A slice that exceeds its trajectory is cut off there; at least one row is left.
    room = np.maximum(totals - length, 0)
    if reach is None or not (reach.left or reach.right):
        return random % (room + 1), np.minimum(totals, length)
    last = _last_begin(totals, length, reach)
    return inside(random % (last + reach.left + 1) - reach.left, totals, length)


def candidates(index: TrajectoryIndex, window: Window, reach: SpanLimits) -> int:
    """Size of the range of `begins_among`: one per row and per position before a trajectory."""
    if not len(window):
        raise ValueError("there is no trajectory yet: write rows before drawing.")
    return len(window) + reach.left * len(index)


def begins_among(
    index: TrajectoryIndex,
    window: Window,
    numbers: Ints,
    length: int,
    minimum: int,
    reach: SpanLimits,
) -> tuple[Ints, Ints, Ints]:
    """The beginnings of slices by number, one number for each place; other numbers are skipped."""
    rows = len(window)
    places = torch.from_numpy(np.minimum(numbers, rows - 1) if reach.left else numbers)
    slots, begins = index.locate(window.numbers(places).numpy())
    before = np.flatnonzero(numbers >= rows)
    if before.size:
        which, far = np.divmod(numbers[before] - rows, reach.left)
        slots[before], begins[before] = index.draw_by(which), -1 - far
    totals = index.lengths_of(slots)
    good = (slots >= 0) & (totals >= minimum)
    # a torn entry of a shared table may begin anywhere
    good &= (begins >= -reach.left) & (begins <= _last_begin(totals, length, reach))
    return slots[good], begins[good], totals[good]


def begins_of_all(
    index: TrajectoryIndex, length: int, minimum: int, reach: SpanLimits
) -> tuple[Ints, Ints, Ints]:
    """All trajectories, their lengths, and the cumulated number of places in them."""
    slots = index.slots()
    totals = index.lengths_of(slots)
    places = _last_begin(totals, length, reach) + reach.left + 1
    ends = np.where(totals >= minimum, places, 0).cumsum()
    if not len(slots) or not ends[-1]:
        raise ValueError(
            f"no trajectory has {minimum} rows: the longest of {len(slots)} has "
            f"{totals.max(initial=0)}. Ask for shorter ones, or wait for more rows."
        )
    return slots, totals, ends


def begin_at(ends: Ints, numbers: Ints, reach: SpanLimits) -> tuple[Ints, Ints]:
    """The trajectory of each place, and the beginning of the slice in it."""
    which = ends.searchsorted(numbers, "right")
    return which, numbers - np.append(0, ends)[which] - reach.left


def inside(begins: Ints, totals: Ints, length: int) -> tuple[Ints, Ints]:
    """Slices without the rows outside of their trajectories."""
    ends = np.minimum(begins + length, totals)
    begins = np.maximum(begins, 0)
    return begins, ends - begins


def _last_begin(totals: Ints, length: int, reach: SpanLimits) -> Ints:
    """The beginning of the last place in trajectories of so many rows."""
    room: Ints = np.maximum(totals - length, 0)
    return np.minimum(room + reach.right, totals - 1) if reach.right else room
