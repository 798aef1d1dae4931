"""Copying packed rows out of memory, in the way that takes least time."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.rows.selection import require_inside

PARALLEL_ITEMS = 32768
"""From so many items on torch gathers with several threads; below it numpy takes half its time."""


def take_rows(words: NDArray[np.int64], index: int | slice | torch.Tensor) -> NDArray[np.int64]:
    """Copies packed rows."""
    if not isinstance(index, torch.Tensor):
        return words[index].copy()
    places = index.numpy()
    # numpy would count a row below 0 from the end; all bits together are negative if one of them is
    if np.bitwise_or.reduce(places) < 0:
        require_inside(index, len(words))
    try:
        return take_known_rows(words, places)
    except IndexError:
        require_inside(index, len(words))
        raise


def take_known_rows(words: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copies packed rows without checks for negative indices."""
    if places.size * words.shape[1] < PARALLEL_ITEMS:
        return words.take(places, 0)
    found = torch.from_numpy(words).index_select(0, torch.from_numpy(places))
    gathered: NDArray[np.int64] = found.numpy()
    return gathered
