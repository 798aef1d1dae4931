"""Segments of a recurrent batch, with a check that no trajectory start is unmarked."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Markers, Segments, keys
from rl_layout.internals import Memo
from rl_recurrent.arguments import check_batch


def recurrent_segments(batch: TensorDictBase) -> Segments:
    """Derive the segments of a batch; raise for an unmarked start of a trajectory."""
    refuse_lost_starts(batch)
    return Segments.of(batch)


def refuse_lost_starts(batch: TensorDictBase) -> None:
    """Raise if the other markers show a first row that ``is_init`` does not mark."""
    require_is_init(batch)
    row = _memo.get(batch, _lost_start)
    if row is not None:
        _raise_lost_start(batch, row)


def require_is_init(batch: TensorDictBase) -> Tensor:
    """Return ``is_init``; raise with its transform if it is missing."""
    check_batch(batch)
    marker: Tensor | None = batch.get(keys.IS_INIT, None)
    if marker is None:
        msg = (
            f"{keys.IS_INIT!r} is missing: rl_transforms.InitTracker writes it. Append it to the "
            "environment, or pass policy= to its constructor, and keep the key in the buffer."
        )
        raise KeyError(msg)
    return marker


def suspicious_rows(markers: Markers) -> Tensor | None:
    """Flag rows that start a trajectory without ``is_init``, bool ``[N]``; None if unknown."""
    ends = markers.boundary()
    if markers.is_init is None or (ends is None and markers.traj_step is None):
        return None
    flags = torch.zeros_like(markers.is_init)
    if ends is not None:
        flags[1:] = ends[:-1]
        # first rows of sequences [*B, T] follow nothing
        flags.view(-1, markers.batch_shape[-1])[:, 0] = False
        if markers.traj_ids is not None and markers.traj_step is not None:
            # another id after an end is a cut of the data, as between rows of a flattened [B, T]
            flags[1:] &= markers.traj_ids[1:] == markers.traj_ids[:-1]
        elif markers.traj_step is not None:
            flags[1:] &= markers.traj_step[1:] == markers.traj_step[:-1] + 1
        if markers.mask is not None:
            flags[1:] &= markers.mask[:-1]
    if markers.traj_step is not None:
        flags |= markers.traj_step == 0
    flags &= ~markers.is_init
    return flags if markers.mask is None else flags.logical_and_(markers.mask)


def _lost_start(markers: Markers) -> int | None:
    flags = suspicious_rows(markers)
    if flags is None or not bool(flags.any()):
        return None
    return int(flags.nonzero()[0])


def _raise_lost_start(batch: TensorDictBase, row: int) -> None:
    shape = batch.batch_size
    places = torch.unravel_index(torch.tensor(row), shape)
    place = row if len(shape) == 1 else tuple(map(int, places))
    msg = (
        f"{keys.IS_INIT} is False at row {place}, where another trajectory starts: the step is 0, "
        "or the row before is done. A state would leak. Did a buffer or a transform drop or "
        "rewrite the flag, or were rows drawn one by one and not in slices? "
        "rl_layout.check_layout(batch) shows all such rows."
    )
    raise ValueError(msg)


_memo: Memo[int | None] = Memo()
