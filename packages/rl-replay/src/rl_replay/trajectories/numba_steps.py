"""Where rows are in their trajectories, in a loop that numba compiles: the only file here for it.

`TrajectoryIndex` has the same in numpy.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

import numpy as np
from numba import njit

from rl_replay.trajectories.tables import (
    BEGIN,
    END,
    INDEXED,
    LOW,
    ORIGIN,
    START,
    STOP,
    STRIDE,
    TRAJECTORY,
)
from rl_slabs.internals import LANE_MASK, LANE_SHIFT


@njit(nogil=True, cache=True)
def walk(words, piece_of, pieces, trajectories, capacity, numbers, far):
    """Each row's trajectory and offset, the row `far` steps on, and whether it is there."""
    # Both are -1 for a row that does not stand or is not real. False comes last where a row is in
    # another piece than the one it is looked for from.
    count, lanes, last = len(numbers), len(words), len(pieces) - 1
    slots, offsets = np.full(count, -1), np.full(count, -1)
    reached, there, inside = numbers.copy(), np.zeros(count, np.bool_), True
    for row in range(count):
        number = numbers[row]
        lane, within = number >> LANE_SHIFT, number & LANE_MASK
        # a torn id may name no lane
        if lane < 0 or lane >= lanes:
            continue
        if within < words[lane, LOW] or within >= words[lane, INDEXED]:
            continue
        slot = piece_of[within % capacity + lane * capacity]
        if slot < 0:
            continue
        piece = pieces[min(slot, last)]  # tables that others write may be torn, too
        origin, stride, step = piece[ORIGIN], piece[STRIDE], piece[START]
        if stride != 0:
            step = (number - origin) // max(stride, 1)
        slots[row] = piece[TRAJECTORY]
        trajectory = trajectories[min(max(piece[TRAJECTORY], 0), last)]
        begin = trajectory[BEGIN]
        offsets[row] = step - begin
        wanted = step + far
        # an absent row gives the last one on the way
        found = min(max(wanted, begin), max(trajectory[STOP] - 1, begin))
        inside &= piece[START] <= found < piece[END]
        reached[row], there[row] = origin + stride * found, found == wanted
    return slots, offsets, reached, there, inside
