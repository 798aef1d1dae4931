"""Drawing slices: a trajectory and a place in it, by two meanings of uniform."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.samplers.slice_shape import Reach
from rl_replay.trajectory_index import TrajectoryIndex

By = Literal["trajectory", "step"]
Ints = NDArray[np.int64]

_LARGE = 1 << 62


class Places(NamedTuple):
    """Slices of trajectories.

    Attributes:
        slots: int64 `[n]`, the trajectories.
        offsets: int64 `[n]`, where in each the slice begins, from its oldest row on.
        lengths: int64 `[n]`, rows of each slice.
    """

    slots: Ints
    offsets: Ints
    lengths: Ints


def by_trajectory(
    index: TrajectoryIndex,
    count: int,
    length: int,
    *,
    minimum: int = 1,
    reach: Reach | None = None,
    generator: torch.Generator | None = None,
) -> Places:
    """Draw trajectories uniformly, then a place in each.

    Args:
        index: The trajectories.
        count: How many slices.
        length: Rows of each; a shorter trajectory is taken whole.
        minimum: Only trajectories of at least so many rows.
        reach: How far slices may reach out of their trajectories.
        generator: Where the randomness comes from; torch's own unless given.

    Raises:
        ValueError: No trajectory has so many rows.

    Example:
        >>> index = TrajectoryIndex(5)
        >>> index.append(0, np.array([0, 1, 1, 0, 0]))
        >>> by_trajectory(index, 2, 3, minimum=3)
        Places(slots=array([0, 0]), offsets=array([0, 0]), lengths=array([3, 3]))
    """
    random = random_numbers((2, count), generator)
    slots = index.draw_by(random[0], minimum, generator)
    return Places(slots, *place_in(index.lengths_of(slots), length, random[1], reach))


def by_step(
    index: TrajectoryIndex,
    count: int,
    length: int,
    *,
    minimum: int = 1,
    generator: torch.Generator | None = None,
) -> Places:
    """Draw first steps uniformly, among all from which a slice of the wanted length goes on.

    A trajectory shorter than a slice has one such step, its first.

    Args:
        index: The trajectories.
        count: How many slices.
        length: Rows of each; a shorter trajectory is taken whole.
        minimum: Only trajectories of at least so many rows.
        generator: Where the randomness comes from; torch's own unless given.

    Raises:
        ValueError: No trajectory has so many rows.

    Example:
        >>> index = TrajectoryIndex(5)
        >>> index.append(0, np.array([0, 1, 1, 0, 0]))
        >>> by_step(index, 2, 3, minimum=3).offsets
        array([0, 0])
    """
    parts: list[tuple[Ints, Ints]] = []
    missing = tries = count
    while missing > 0 and tries <= 2 * max(len(index), count):
        slots, offsets = index.locate(index.draw_rows(tries, generator))
        totals = index.lengths_of(slots)
        good = (slots >= 0) & (totals >= minimum) & (offsets <= np.maximum(totals - length, 0))
        parts.append((slots[good][:missing], offsets[good][:missing]))
        missing -= len(parts[-1][0])
        tries *= 2
    if missing > 0:
        parts.append(_among_all(index, missing, length, minimum, generator))
    slots, offsets = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Places(slots, offsets, np.minimum(index.lengths_of(slots), length))


def random_numbers(shape: tuple[int, ...], generator: torch.Generator | None) -> Ints:
    """Numbers so large that their remainders by any number of rows are as good as uniform.

    Args:
        shape: How many.
        generator: Where the randomness comes from; torch's own unless given.

    Example:
        >>> random_numbers((2, 3), None).shape
        (2, 3)
    """
    numbers: Ints = torch.randint(_LARGE, shape, generator=generator).numpy()
    return numbers


def place_in(
    totals: Ints, length: int, random: Ints, reach: Reach | None = None
) -> tuple[Ints, Ints]:
    """Choose where a slice begins in each of some trajectories, every place equally likely.

    Where a slice reaches out of its trajectory, only what lies in it is left, at least one row.

    Args:
        totals: int64 `[n]`, rows of each trajectory, at least 1.
        length: Rows of a slice; a shorter trajectory is taken whole.
        random: int64 `[n]`, large random numbers.
        reach: How far slices may reach out.

    Returns:
        Offsets and lengths, int64 `[n]` each.

    Example:
        >>> place_in(np.array([5, 2]), 3, np.array([7, 7]))
        (array([1, 0]), array([3, 2]))
    """
    room = np.maximum(totals - length, 0)
    if reach is None or not (reach.left or reach.right):
        return random % (room + 1), np.minimum(totals, length)
    last = np.minimum(room + reach.right, totals - 1)
    begins = random % (last + reach.left + 1) - reach.left
    ends = np.minimum(begins + length, totals)
    begins = np.maximum(begins, 0)
    return begins, ends - begins


def _among_all(
    index: TrajectoryIndex,
    count: int,
    length: int,
    minimum: int,
    generator: torch.Generator | None,
) -> tuple[Ints, Ints]:
    """By looking at every trajectory, where few steps are allowed."""
    slots = index.slots()
    totals = index.lengths_of(slots)
    starts = np.where(totals >= minimum, np.maximum(totals - length, 0) + 1, 0)
    ends = starts.cumsum()
    if not len(slots) or not ends[-1]:
        raise ValueError(
            f"no trajectory has {minimum} rows: the longest of {len(slots)} has "
            f"{totals.max(initial=0)}. Ask for shorter ones, or wait for more rows."
        )
    drawn = torch.randint(int(ends[-1]), (count,), generator=generator).numpy()
    which = ends.searchsorted(drawn, "right")
    return slots[which], drawn - (ends - starts)[which]
