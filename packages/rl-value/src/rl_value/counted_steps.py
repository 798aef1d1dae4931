"""Which steps are real, and what networks may read of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import flat_marker
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_tuple, find
from rl_tensordict.types import KeyPath


def readable(
    batch: TensorDictBase,
    *networks: TensorDictModuleBase | None,
    more: Iterable[NestedKey] = (),
) -> TensorDictBase:
    """The batch as networks and distributions may read it: on padding what a real step holds."""
    # Padding may hold anything. Left as it is, a NaN there would be no part of any loss and yet of
    # the gradients, as 0 · NaN, and an action that is none would be refused.
    mask = find(batch, keys.MASK)
    if mask is None or not mask.numel():
        return batch
    real, seen = step_flag(batch, keys.MASK, mask), batch.copy()
    flat = real.reshape(-1)
    # the first real row: argmax of bytes, since argmax knows no booleans
    some, is_there = flat.to(torch.uint8).argmax().reshape(1), flat.any()

    def filled(leaf: Tensor) -> Tensor:
        one = leaf.flatten(0, real.ndim - 1).index_select(0, some)[0]
        one = torch.where(is_there, one, torch.zeros_like(one))
        return torch.where(real.view(*real.shape, *(1,) * (leaf.ndim - real.ndim)), leaf, one)

    read = [key for network in networks if network is not None for key in network.in_keys]
    for key in dict.fromkeys(map(as_tuple, (*read, *more))):
        leaf = find(batch, key)
        if _marks(key):
            continue
        if isinstance(leaf, Tensor):
            seen.set(key, filled(leaf))
        elif isinstance(leaf, TensorDictBase):
            seen.set(key, leaf.apply(filled))
    return seen


def absent_members(batch: TensorDictBase, terminated: NestedKey, done: NestedKey) -> Tensor | None:
    """Members of a group that take no part in a step, bool ``[*B, T, *G]``; None if not stated.

    They are done at the root already, or False in the group's ``"mask"``.
    """
    group = group_of(terminated)
    if not group:
        return None
    name = as_tuple(done)[-1] if group_of(done) == group else keys.DONE
    out = member_flag(batch, terminated, find(batch, (*group, name)))
    mask = member_flag(batch, terminated, find(batch, (*group, keys.MASK[-1])))
    if mask is None:
        return out
    return ~mask if out is None else out | ~mask


def has_members(batch: TensorDictBase, terminated: NestedKey, done: NestedKey) -> bool:
    """Whether flags are those of several members, or say which of them are out."""
    own = find(batch, under_next(terminated)) if group_of(terminated) else None
    if own is not None and own.ndim > batch.ndim + 1:
        return True
    return absent_members(batch, terminated, done) is not None


def members_without_next(batch: TensorDictBase, terminated: NestedKey) -> Tensor | None:
    """Members whose next observation could not be had, bool ``[*B, T, *G]``; None if not stated."""
    group = group_of(terminated)
    flag = find(batch, (*group, keys.NEXT_MISSING[-1])) if group else None
    return member_flag(batch, terminated, flag)


def group_of(key: NestedKey) -> KeyPath:
    """The prefix of an entry, as at the root; empty for one of no group."""
    parts = as_tuple(key)
    return parts[1:-1] if parts[0] == keys.NEXT else parts[:-1]


def member_flag(batch: TensorDictBase, terminated: NestedKey, value: Any) -> Tensor | None:
    """A flag of the members of a group, bool ``[*B, T, *G]``; None for an entry that is none."""
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        return None
    # flags end in a dimension of size 1, which a mask need not have; as many sizes *G as those of
    # the group's own flag, one if it is not stored
    own = find(batch, under_next(terminated))
    rank = batch.ndim + 1 if own is None else own.ndim - 1
    if value.ndim == rank + 1 and value.shape[-1] == 1:
        value = value.squeeze(-1)
    fits = value.ndim == rank and value.shape[: batch.ndim] == batch.batch_size
    return value if fits else None


def under_next(key: NestedKey) -> KeyPath:
    """The key under ``"next"`` of an entry that is named as at the root."""
    parts = as_tuple(key)
    return parts if parts[0] == keys.NEXT else next_key(parts)


def _marks(key: tuple[str, ...]) -> bool:
    """Whether an entry says what is a step and what is not."""
    return key[0] == keys.COLLECTOR or key[-1] == keys.IS_INIT


def step_flag(batch: TensorDictBase, key: NestedKey, value: Tensor) -> Tensor:
    """A flag of the steps of a batch, with or without a last dimension of size 1."""
    shape = batch.batch_size
    singleton = value.shape == (*shape, 1)
    return flat_marker(value, shape, key, torch.bool, singleton).view(shape)
