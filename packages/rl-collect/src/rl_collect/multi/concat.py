"""One batch out of those of several workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

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
        joined = stack(batches)
    else:
        time = batches[0].ndim - 1
        dim = int(how) % (time + 1)
        if dim != time and shortest < longest:
            msg = (
                f"workers that were stopped early have {shortest} to {longest} steps: "
                f"cat_results={how!r} cannot lay them side by side. Use -1 or 'stack'."
            )
            raise ValueError(msg)
        joined = cat(batches, dim)
    joined.names = [*[None] * (joined.ndim - 1), keys.TIME]
    return joined


def cat(batches: Sequence[TensorDictBase], dim: int) -> TensorDictBase:
    """Lay batches end to end, also where entries have no one size.

    Args:
        batches: of the same entries.
        dim: along which; negative ones count from the last.

    Returns:
        One batch, a lazy stack where steps differ in size.

    Example:
        >>> from tensordict import TensorDict
        >>> one, two = (TensorDict({"a": torch.ones(1, size)}, [1]) for size in (2, 3))
        >>> [len(step["a"]) for step in cat([one, two], 0).unbind(0)]
        [2, 3]
    """
    if _are_alike(batches):
        return torch.cat(list(batches), dim)
    dim %= batches[0].ndim
    pieces = [piece for batch in batches for piece in batch.unbind(dim)]
    made = LazyStackedTensorDict.lazy_stack(pieces, dim)
    made.names = batches[0].names
    return made


def stack(batches: Sequence[TensorDictBase]) -> TensorDictBase:
    """Stack batches `[W, ...]`, also where entries have no one size.

    Args:
        batches: of one batch size, and of the same entries.

    Returns:
        One batch, a lazy stack where steps differ in size.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> stack([trajectories([3]), trajectories([3])]).shape
        torch.Size([2, 3])
    """
    if _are_alike(batches):
        return torch.stack(list(batches))
    return LazyStackedTensorDict.lazy_stack(list(batches), 0)


def _are_alike(batches: Sequence[TensorDictBase]) -> bool:
    """Whether every entry has one size in all steps of all batches."""
    if any(isinstance(batch, LazyStackedTensorDict) for batch in batches):
        return False
    first, *others = (
        [leaf.shape[batch.ndim :] for _, leaf in sorted(keys.leaves(batch))] for batch in batches
    )
    return all(one == first for one in others)


def _padded(batch: TensorDictBase, length: int) -> TensorDictBase:
    missing = length - batch.shape[-1]
    mask = torch.ones(batch.shape, dtype=torch.bool)
    marked = batch.copy().set(keys.MASK, mask)
    if not missing:
        return marked
    pad = cat([marked[..., :1].clone().zero_()] * missing, -1)
    ids = pad.get(keys.TRAJ_IDS, None)
    if ids is not None:
        pad.set(keys.TRAJ_IDS, torch.full_like(ids, keys.PADDING_ID))
    return cat([marked, pad], -1)
