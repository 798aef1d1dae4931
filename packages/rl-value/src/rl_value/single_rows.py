"""Rows that a buffer drew one by one, given to networks that carry a state from row to row."""

from __future__ import annotations

import warnings

from tensordict import TensorDictBase

from rl_layout import Segments, keys
from rl_tensordict import find
from rl_value.arguments import is_transformed

LEAST_ROWS = 8
"""Fewer rows than this may be single ones by chance."""


def warn_of_single_rows(batch: TensorDictBase) -> None:
    """Warn where a sample ``[N]`` for a recurrent network was drawn row by row."""
    if is_transformed() or batch.ndim != 1 or len(batch) < LEAST_ROWS:
        return
    if find(batch, (keys.INDEX,)) is None or find(batch, keys.SLICE_IDS) is not None:
        return
    if Segments.of(batch).max_length > 1:
        return
    msg = (
        "this sample was drawn row by row, and the network carries a state from row to row: each "
        "row is a sequence of its own, and nothing is learned beyond one step. Draw slices: "
        "SliceSampler(slice_len=...)."
    )
    warnings.warn(msg, UserWarning, stacklevel=4)
