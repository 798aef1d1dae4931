"""Partial resets: masks of the rows to reset, and the merge with the rows that continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDictBase, is_non_tensor
from torch import Tensor

from rl_envs.env.done import RESET
from rl_layout import keys
from rl_tensordict import build
from rl_tensordict.types import KeyPath


def reset_masks(
    tensordict: TensorDictBase | None, groups: list[KeyPath], batch_size: torch.Size
) -> dict[KeyPath, Tensor]:
    """Read the `_reset` masks `[*B, ..., 1]` by prefix; empty means that every row is reset."""
    if tensordict is None:
        return {}
    masks: dict[KeyPath, Tensor] = {}
    for prefix in {(): None, **dict.fromkeys(groups)}:
        mask = tensordict.get((*prefix, RESET), None)
        if mask is not None:
            _check(mask, prefix, batch_size)
            masks[prefix] = mask.unsqueeze(-1) if mask.shape == batch_size else mask
    return masks


def _check(mask: Tensor, prefix: KeyPath, batch_size: torch.Size) -> None:
    if mask.dtype != torch.bool:
        msg = f"{keys.as_key((*prefix, RESET))!r}: expected dtype torch.bool, got {mask.dtype}."
        raise TypeError(msg)
    if mask.shape[: len(batch_size)] != batch_size:
        msg = (
            f"{keys.as_key((*prefix, RESET))!r}: expected the shape of a done flag, which begins "
            f"with {tuple(batch_size)}: got {tuple(mask.shape)}."
        )
        raise ValueError(msg)


def without_masks(tensordict: TensorDictBase, masks: Mapping[KeyPath, Tensor]) -> TensorDictBase:
    """Return a root without masks and `"next"`; leaves are shared."""
    kept = tensordict.copy()
    for key in (keys.NEXT, *((*prefix, RESET) for prefix in masks)):
        if kept.get(key, None) is not None:
            del kept[key]
    return kept


def with_masks(kept: TensorDictBase, masks: Mapping[KeyPath, Tensor]) -> TensorDictBase:
    """Return a root with the masks as `_reset`, each in the shape of a done flag."""
    root = kept.copy()
    for prefix, mask in masks.items():
        root.set((*prefix, RESET), mask)
    return root


def merge(
    old: TensorDictBase,
    new: TensorDictBase,
    masks: Mapping[KeyPath, Tensor],
    prefix: KeyPath = (),
) -> TensorDictBase:
    """Merge a reset root into the old one: new values where the mask is True, else old ones."""
    # prefix: of the subtree; a leaf obeys the mask of the nearest group above it. Where shape or
    # dtype differ there is no row to keep, and the new leaf counts
    if isinstance(new, LazyStackedTensorDict):
        return _merge_stacks(old, new, masks, prefix)
    merged = dict(old.items())
    for name, fresh in new.items():
        before, place = merged.get(name), (*prefix, name)
        if isinstance(fresh, TensorDictBase) and not is_non_tensor(fresh):
            merged[name] = fresh if before is None else merge(before, fresh, masks, place)
        elif is_non_tensor(before) and is_non_tensor(fresh):
            merged[name] = _merge_objects(before, fresh, mask_of(masks, prefix))
        elif not isinstance(before, Tensor) or (before.shape, before.dtype) != (
            fresh.shape,
            fresh.dtype,
        ):
            merged[name] = fresh
        else:
            merged[name] = torch.where(fit_mask(mask_of(masks, prefix), fresh), fresh, before)
    return build(merged, new.batch_size)


def _merge_stacks(
    old: TensorDictBase,
    new: LazyStackedTensorDict,
    masks: Mapping[KeyPath, Tensor],
    prefix: KeyPath,
) -> TensorDictBase:
    """Merge lazily stacked tensordicts part by part, whose leaves may differ in shape."""
    dim = new.stack_dim
    pairs = enumerate(zip(old.unbind(dim), new.unbind(dim), strict=True))
    parts = []
    for number, (before, fresh) in pairs:
        # [*B, 1] has the dimension of the stack where that is one of the rows
        inner = {
            key: mask.select(dim, number) if dim < mask.ndim - 1 else mask
            for key, mask in masks.items()
        }
        parts.append(merge(before, fresh, inner, prefix))
    return LazyStackedTensorDict.lazy_stack(parts, dim)


def _merge_objects(before: Any, fresh: Any, mask: Tensor) -> Any:
    """Merge non-tensor data: new objects in the rows that were reset, old ones in the others."""
    rows = mask.squeeze(-1)
    while rows.ndim > fresh.ndim:
        rows = rows.any(-1)
    if not rows.ndim or bool(rows.all()) or not bool(rows.any()):
        return fresh if bool(rows.all()) else before
    pairs = zip(before.unbind(0), fresh.unbind(0), rows.unsqueeze(-1), strict=True)
    return NonTensorStack(*[_merge_objects(*pair) for pair in pairs], stack_dim=0)


def mask_of(masks: Mapping[KeyPath, Tensor], prefix: KeyPath) -> Tensor:
    """Find the mask of the nearest group above a leaf."""
    # a leaf outside all groups is reset where any group is
    for depth in range(len(prefix), -1, -1):
        if prefix[:depth] in masks:
            return masks[prefix[:depth]]
    rows = min(mask.ndim for mask in masks.values())
    each = [mask.flatten(rows - 1).any(-1, keepdim=True) for mask in masks.values()]
    return torch.stack(each).any(0)


def fit_mask(mask: Tensor, leaf: Tensor) -> Tensor:
    """Reshape a mask `[*B, ..., 1]` so that it broadcasts against a leaf `[*B, ...]`."""
    rows = mask.squeeze(-1)
    while rows.ndim > leaf.ndim:  # a leaf of the whole row, a mask of each agent
        rows = rows.any(-1)
    return rows.reshape(*rows.shape, *(1,) * (leaf.ndim - rows.ndim))
