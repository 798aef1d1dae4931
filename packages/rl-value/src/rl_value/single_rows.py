"""Rows drawn or shuffled one by one, for networks that carry a state from row to row."""

from __future__ import annotations

import warnings

from tensordict import TensorDictBase

from rl_layout import EndKind, Segments, keys
from rl_tensordict import find
from rl_value.scan.block_scan import is_transformed

LEAST_ROWS = 8
"""Fewer rows than this may be single ones by chance."""


def warn_of_single_rows(batch: TensorDictBase) -> None:
    """Warn where rows ``[N]`` for a recurrent network were drawn, or shuffled, row by row."""
    if is_transformed() or batch.ndim != 1 or len(batch) < LEAST_ROWS:
        return
    if find(batch, keys.SLICE_IDS) is not None:
        return
    segments = Segments.of(batch)
    if find(batch, (keys.INDEX,)) is not None:
        what = "this sample was drawn row by row"
        is_lone = segments.max_length == 1
    else:  # of shuffled rows a few follow each other by chance; episodes of one step are no cuts
        lone = int(((segments.lengths == 1) & (segments.kinds == EndKind.CUT)).sum())
        what = f"{lone} of these {len(batch)} rows are cut from the row before and the one after"
        is_lone = 8 * lone >= 7 * len(batch)
    if not is_lone:
        return
    msg = (
        f"{what}, and the network carries a state from row to row: each row is a sequence of its "
        "own, and nothing is learned beyond one step. Draw slices: SliceSampler(slice_len=...); or "
        "shuffle whole trajectories, or rows of [B, T], instead of steps."
    )
    warnings.warn(msg, UserWarning, stacklevel=4)
