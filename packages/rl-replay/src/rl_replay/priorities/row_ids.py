"""Row ids: as the words of a tree hold them, and the positions of those of a lane."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_replay.priorities.memory import HalfWords
from rl_slabs import Window
from rl_slabs.internals import LANE_MASK, LANE_SHIFT
from rl_tensordict.types import Flags, Ints


def ids_of(row_ids: Ints) -> HalfWords:
    """What a word holds of a row id: the lower half of it + 1, as no word of zeros is a row's."""
    ids: HalfWords = (row_ids + 1).astype(np.uint32)
    return ids


def within(row_ids: Ints, window: Window | None) -> Flags:
    """Which row ids are in a window; -1 never is."""
    if window is None:
        return np.zeros(len(row_ids), np.bool_)
    # numbers before the first one are large where they have no sign
    lanes = zip(window.first, window.counts, strict=True)
    found = [(row_ids - first).view(np.uint64) < count for first, count in lanes]
    good: Flags = found[0] if len(found) == 1 else np.logical_or.reduce(found)
    return good


def require_written(window: Window, row_ids: Ints) -> None:
    """Raises for row ids that no row of the window or before it has."""
    if not row_ids.size:
        return
    if row_ids.min() < 0:
        raise ValueError(f"row ids are at least 0, got {int(row_ids.min())}: leave padding out.")
    ends = np.add(window.first, window.counts)  # for each lane, whose ids it has in its upper half
    lanes = row_ids >> LANE_SHIFT
    bad = (lanes >= len(ends)) | (row_ids >= ends.take(lanes, mode="clip"))
    if bad.any():
        row = int(row_ids[bad][0])
        newest = int(ends[min(row >> LANE_SHIFT, len(ends) - 1)]) - 1
        raise ValueError(
            f"row {row} was never written, the newest one is {newest}: is this a sample of another "
            "buffer?"
        )


def runs(begin: int, end: int, lane_size: int) -> Iterator[tuple[int, int, int]]:
    """Row ids of a lane as runs of positions: where each begins, and its row ids."""
    if begin >= end:
        return
    # a lane has so many positions, and its rows begin again at the first of them
    lane = (begin >> LANE_SHIFT) * lane_size
    place = (begin & LANE_MASK) % lane_size
    seam = min(begin + lane_size - place, end)
    yield lane + place, begin, seam
    if seam < end:
        yield lane, seam, end
