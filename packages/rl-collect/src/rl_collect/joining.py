"""One batch out of those of several workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from rl_layout import keys


def join(batches: Sequence[TensorDictBase], how: str | int) -> TensorDictBase:
    """Put the batches of workers together.

    Args:
        batches: `[*B, T]` from each worker; T may differ where some were stopped early.
        how: "stack" for `[W, *B, T]`, or the dimension to lay them end to end along. Stacked
            batches of different lengths are padded with zeros and ids of -1, and
            `("collector", "mask")` tells the real steps.

    Returns:
        One batch.

    Raises:
        ValueError: batches of these sizes cannot be laid end to end along that dimension.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> two = [trajectories([3]), trajectories([2])]
        >>> join(two, "stack")["collector", "mask"].tolist()
        [[True, True, True], [True, True, False]]
        >>> join(two, 0).shape
        torch.Size([5])
    """
    longest = max(batch.shape[-1] for batch in batches)
    shortest = min(batch.shape[-1] for batch in batches)
    if how == "stack":
        if shortest < longest:
            batches = [_padded(batch, longest) for batch in batches]
        joined: TensorDictBase = torch.stack(list(batches))
    else:
        time = batches[0].ndim - 1
        dim = int(how) % (time + 1)
        if dim != time and shortest < longest:
            msg = (
                f"workers that were stopped early have {shortest} to {longest} steps: "
                f"cat_results={how!r} cannot lay them side by side. Use -1 or 'stack'."
            )
            raise ValueError(msg)
        joined = torch.cat(list(batches), dim)
    joined.names = [*[None] * (joined.ndim - 1), keys.TIME]
    return joined


def _padded(batch: TensorDictBase, length: int) -> TensorDictBase:
    missing = length - batch.shape[-1]
    mask = torch.ones(batch.shape, dtype=torch.bool)
    marked = batch.copy().set(keys.MASK, mask)
    if not missing:
        return marked
    pad = marked[..., :1].expand(*batch.shape[:-1], missing).clone().zero_()
    ids = pad.get(keys.TRAJ_IDS, None)
    if ids is not None:
        ids.fill_(keys.PADDING_ID)
    return torch.cat([marked, pad], -1)
