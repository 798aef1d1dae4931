"""Copies of tensordicts with entries replaced, added or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_tensordict import NestedKey, as_key, as_tuple, build, leaves, names_of

# Copies are built from the entries: tensordict's own shallow copy takes several times as long as a
# step of a transform. Lazy and memory-mapped tensordicts take the slow path.


def with_entries(batch: TensorDictBase, changes: Mapping[NestedKey, Any]) -> TensorDictBase:
    """Copy a tensordict, sharing its leaves, with some entries replaced or added."""
    if type(batch) is not TensorDict:
        return _with_entries_slowly(batch, changes)
    entries = dict(batch.items())
    groups: dict[str, dict[NestedKey, Any]] = {}
    for key, value in changes.items():
        if isinstance(key, str):
            entries[key] = value
        elif len(key) == 1:
            entries[key[0]] = value
        else:
            groups.setdefault(key[0], {})[key[1:]] = value
    for name, inner in groups.items():
        entries[name] = with_entries(_group(batch, entries, name), inner)
    return _rebuilt(batch, entries)


def without_entries(batch: TensorDictBase, dropped: Iterable[NestedKey]) -> TensorDictBase:
    """Copy a tensordict, sharing its leaves, without some entries and the groups they empty."""
    if type(batch) is not TensorDict:
        return _without_entries_slowly(batch, [*dropped])
    entries = dict(batch.items())
    groups: dict[str, list[NestedKey]] = {}
    for key in dropped:
        head, *rest = as_tuple(key)
        if not rest:
            entries.pop(head, None)
        else:
            groups.setdefault(head, []).append(tuple(rest))
    for name, inner in groups.items():
        group = entries.get(name)
        if isinstance(group, TensorDictBase):
            entries[name] = without_entries(group, inner)
            if entries[name].is_empty() and not group.is_empty():
                del entries[name]
    return _rebuilt(batch, entries)


def missing(who: object, key: NestedKey, *batches: TensorDictBase) -> KeyError:
    """Make the KeyError for a missing key; it lists the keys that there are, and those alike."""
    name = who if isinstance(who, str) else type(who).__name__
    names = [leaf for batch in batches for leaf, _ in leaves(batch)]
    found = ", ".join(str(as_key(leaf)) for leaf in names) or "no entries"
    alike = [repr(as_key(leaf)) for leaf in names if leaf[-1] == as_tuple(key)[-1]]
    hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
    return KeyError(f"{name}: {key!r} is missing: there are {found}.{hint}")


def required(who: object, batch: TensorDictBase, key: NestedKey) -> torch.Tensor:
    """Read a leaf; the KeyError for a missing one lists the keys that there are."""
    leaf: torch.Tensor | None = batch.get(key, None)
    if leaf is None:
        raise missing(who, key, batch)
    return leaf


def not_reset(who: object, key: NestedKey, root: TensorDictBase) -> KeyError:
    """Make the KeyError for a step before the first reset."""
    hint = f"Call reset first; if it was called, a transform after this one drops {key!r}."
    return KeyError(f"{missing(who, key, root).args[0]} {hint}")


def check_mask(mask: torch.Tensor, shape: torch.Size) -> None:
    """Raise for a mask of reset rows that does not fit a leaf."""
    if mask.dtype != torch.bool:
        msg = f"reset mask: expected torch.bool, got {mask.dtype}. Call .bool()."
        raise TypeError(msg)
    if mask.shape != shape[: mask.ndim]:
        head = f"expected the batch size, at the head of {list(shape)}"
        msg = f"reset mask: {head}, got {list(mask.shape)}. Pass one flag per row."
        raise ValueError(msg)


def merge_rows(mask: torch.Tensor, fresh: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Take `fresh` where the mask is True and `kept` elsewhere, ``[*B, ...]``."""
    check_mask(mask, fresh.shape)
    # [*B] -> [*B, 1, ...]
    return torch.where(mask.reshape(*mask.shape, *[1] * (fresh.ndim - mask.ndim)), fresh, kept)


def merge_reset(
    mask: torch.Tensor | None, fresh: torch.Tensor, kept: torch.Tensor | None
) -> torch.Tensor:
    """Take `fresh` in the rows of a reset and what was kept in the others, if there are others."""
    # a leaf of the shape or dtype from before a transform holds raw values in every row
    if mask is None or kept is None or (kept.shape, kept.dtype) != (fresh.shape, fresh.dtype):
        return fresh
    return merge_rows(mask, fresh, kept)


def _group(batch: TensorDictBase, entries: Mapping[str, Any], name: str) -> TensorDictBase:
    group = entries.get(name)
    if group is None:
        return build({}, batch.batch_size, names_of(batch), batch.device)
    if not isinstance(group, TensorDictBase):
        msg = f"cannot write below {name!r}: it holds a leaf, {type(group).__name__}."
        raise KeyError(msg)
    return group


def _rebuilt(batch: TensorDictBase, entries: dict[str, Any]) -> TensorDict:
    return build(entries, batch.batch_size, names_of(batch), batch.device)


def _with_entries_slowly(batch: TensorDictBase, changes: Mapping[NestedKey, Any]) -> TensorDictBase:
    copy = batch.clone(recurse=False)
    for key, value in changes.items():
        copy.set(key, value)
    return copy


def _without_entries_slowly(batch: TensorDictBase, dropped: Sequence[NestedKey]) -> TensorDictBase:
    left: TensorDictBase = batch.exclude(*dropped)
    for key in dropped:
        outer = as_tuple(key)[:-1]
        while outer and left.get(outer, None) is not None and left[outer].is_empty():
            left = left.exclude(outer)
            outer = outer[:-1]
    return left
