"""Taking many rows into an index at once, piece by piece."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Window

_PIECE, _LONG = 1 << 20, 1 << 23  # rows at a time; rows that take seconds, and so a bar


def pending(index: TrajectoryIndex | None, window: Window) -> int:
    """How many rows of a window are not indexed yet."""
    if index is None:
        return len(window)
    ends = [first + count for first, count in zip(window.first, window.counts, strict=True)]
    return sum(
        min(max(end - index.indexed(lane), 0), window.counts[lane]) for lane, end in enumerate(ends)
    )


def fill_index(
    index: TrajectoryIndex, back: NDArray[np.integer], window: Window, *, piece: int = _PIECE
) -> None:
    """Indexes all rows of a window; millions of rows with a progress bar, if tqdm is installed."""
    for lane, (low, count) in enumerate(zip(window.first, window.counts, strict=True)):
        starts = range(max(low, index.indexed(lane)), low + count, piece)
        for start in _shown(starts, pending(index, window)):
            # the window of a lane grows piece by piece, so that memory for temporaries does not
            index.catch_up_lane(lane, back, low, min(start + piece, low + count))
    index.catch_up(back, window)


def _shown(pieces: Iterable[int], rows: int) -> Iterable[int]:
    if rows < _LONG or importlib.util.find_spec("tqdm") is None:
        return pieces
    from tqdm.auto import tqdm

    bar: Iterable[int] = tqdm(
        pieces, desc="trajectories", unit_scale=_PIECE, unit=" rows", leave=False
    )
    return bar
