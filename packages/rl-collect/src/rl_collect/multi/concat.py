"""One batch out of those of several workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from rl_layout import keys
from rl_tensordict import CPU


def join(batches: Sequence[TensorDictBase], how: str | int) -> TensorDictBase:
    """Put the batches of workers together."""
    longest = max(batch.shape[-1] for batch in batches)
    shortest = min(batch.shape[-1] for batch in batches)
    if how == "stack":
        if shortest < longest:
            batches = [_padded(batch, longest) for batch in batches]
        joined = stack(batches)
    else:
        time = batches[0].ndim - 1
        if not -time - 1 <= int(how) <= time:
            msg = (
                f"cat_results={how}: batches of workers are {list(batches[0].shape)}, without such "
                "a dimension. Use -1 or 'stack'."
            )
            raise IndexError(msg)
        dim = int(how) % (time + 1)
        if dim != time and shortest < longest:
            msg = (
                f"workers that were stopped early have {shortest} to {longest} steps: "
                f"cat_results={how!r} cannot stack them. Use -1 or 'stack'."
            )
            raise ValueError(msg)
        joined = cat(batches, dim)
    joined.names = [*[None] * (joined.ndim - 1), keys.TIME]
    return joined


def cat(batches: Sequence[TensorDictBase], dim: int) -> TensorDictBase:
    """Lay batches end to end, also where entries have no one size."""
    if _are_alike(batches):
        return torch.cat(list(batches), dim)
    dim %= batches[0].ndim
    pieces = [piece for batch in batches for piece in batch.unbind(dim)]
    made = LazyStackedTensorDict.lazy_stack(pieces, dim)
    made.names = batches[0].names
    return made


def stack(batches: Sequence[TensorDictBase]) -> TensorDictBase:
    """Stack batches `[W, ...]`, also where entries have no one size."""
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
    mask = torch.ones(batch.shape, dtype=torch.bool, device=CPU)
    marked = batch.copy().set(keys.MASK, mask)
    if not missing:
        return marked
    pad = cat([marked[..., :1].clone().zero_()] * missing, -1)
    ids = pad.get(keys.TRAJ_IDS, None)
    if ids is not None:
        pad.set(keys.TRAJ_IDS, torch.full_like(ids, keys.PADDING_ID))
    return cat([marked, pad], -1)
