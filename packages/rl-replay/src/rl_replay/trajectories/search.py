"""Finding rows of trajectories in the tables, many at once.

Tables in shared memory may be read while their writer changes them. Then what is found may be
wrong, which the caller must prove, but every search ends and every slot is in its table.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rl_replay.trajectories.tables import JUMP, JUMP_START, ORIGIN, PREVIOUS, START, STRIDE
from rl_tensordict.types import Ints

# More than a sound table can need, which is two for each doubling of the pieces of a trajectory,
# and again for each time that its oldest piece went while it grew.
_MOST_JUMPS = 500

_MANY = 256


def pieces_with(pieces: Ints, newest: Ints, steps: Ints) -> Ints:
    """The pieces that hold some steps, searched from a newer piece of the same trajectory."""
    slots, found = newest, pieces.take(newest, axis=0, mode="clip")
    for _ in range(_MOST_JUMPS):
        early = found[:, START] > steps
        if not np.count_nonzero(early):  # a third of the time of any()
            break
        onward = np.where(found[:, JUMP_START] >= steps, found[:, JUMP], found[:, PREVIOUS])
        # all of them again: cheaper than selecting the unfinished ones
        slots = np.where(early, onward, slots)
        found = pieces.take(slots, axis=0, mode="clip")
    return found


def numbers_of(pieces: Ints, newest: Ints, first: Ints, counts: Ints) -> Ints:
    """The row ids of slices: `counts` rows from step `first` on of each trajectory."""
    found: Ints = pieces.take(newest, axis=0, mode="clip")
    whole = not np.count_nonzero(found[:, START] > first)
    if not whole:
        found = pieces_with(pieces, newest, first + counts - 1)
        whole = not np.count_nonzero(found[:, START] > first)
    length = even_length(counts)
    if whole and length is not None:
        # as most slices are: all of one length, each inside one piece
        steps = first[:, None] + _steps(length)
        even: Ints = found[:, ORIGIN, None] + found[:, STRIDE, None] * steps
        return even.reshape(-1)
    which = np.arange(len(counts)).repeat(counts)
    steps = np.arange(len(which)) + (first + counts - counts.cumsum()).take(which)
    numbers: Ints = found[:, ORIGIN].take(which) + found[:, STRIDE].take(which) * steps
    for _ in range(int(counts.max(initial=0))):
        begins = found[:, START].copy()
        short = begins > first
        if not np.count_nonzero(short):
            break
        found[short] = pieces.take(found[short, PREVIOUS], axis=0, mode="clip")
        earlier = found[:, ORIGIN].take(which) + found[:, STRIDE].take(which) * steps
        numbers = np.where(steps < begins.take(which), earlier, numbers)
    return numbers


def even_length(counts: Ints) -> int | None:
    """The common value of all counts; None where they differ, or are many or none."""
    if not 0 < len(counts) <= _MANY:
        return None
    plain = counts.tolist()  # quicker than numpy on the few slices of a sample
    return plain[0] if plain.count(plain[0]) == len(plain) else None


@cache
def _steps(length: int) -> Ints:
    return np.arange(length)
