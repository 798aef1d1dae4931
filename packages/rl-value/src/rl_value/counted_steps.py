"""Which steps are real, which of them count, and what networks may read of the others."""

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
from rl_tensordict import NestedKey, as_tuple, copied, find, require
from rl_tensordict.types import KeyPath


def counted_steps(
    batch: TensorDictBase,
    mask_key: NestedKey | None = "auto",
    terminated: NestedKey = keys.TERMINATED,
    done: NestedKey = keys.DONE,
) -> Tensor | None:
    """Find the steps that losses are about, bool ``[*B, T]``; ``[*B, T, *G]`` of a group."""
    # "auto" is all of: real by the mask, inside the budget of shifted, with its history, and with
    # a next observation unless terminated; another key is that flag alone; None counts every step
    if mask_key is None:
        return None
    if mask_key != "auto":
        flag = require(batch, mask_key)
        of_members = member_flag(batch, terminated, flag)
        return step_flag(batch, mask_key, flag) if of_members is None else of_members
    found: Tensor | None = None
    for key in (keys.MASK, keys.SHIFTED_VALID):
        value = find(batch, as_tuple(key))
        if value is not None:
            flag = step_flag(batch, key, value)
            found = flag if found is None else found & flag
    lost_members = _members_left_out(batch, terminated, done)
    for lost in (_without_history(batch), _without_next(batch, terminated), lost_members):
        if lost is None:
            continue
        # steps [*B, T] and members [*B, T, *G] meet
        extra = 0 if found is None else lost.ndim - found.ndim
        wide = lost.view(*lost.shape, *(1,) * -extra)
        found = ~lost if found is None else found.view(*found.shape, *(1,) * extra) & ~wide
    return found


def _without_history(batch: TensorDictBase) -> Tensor | None:
    """Steps whose observation, or next one, is not the one that the policy saw."""
    flag = find(batch, keys.HISTORY_MISSING)
    return None if flag is None else step_flag(batch, keys.HISTORY_MISSING, flag)


def _without_next(batch: TensorDictBase, terminated: NestedKey) -> Tensor | None:
    """Steps that need a next observation and have none, bool ``[*B, T]`` or ``[*B, T, *G]``."""
    flag = find(batch, keys.NEXT_MISSING)
    if flag is None:
        return None
    lost, ended = step_flag(batch, keys.NEXT_MISSING, flag), find(batch, under_next(terminated))
    own = member_flag(batch, terminated, ended)
    if own is None:  # no flag, or several in a step, all of which must be set
        return lost if ended is None else lost & ~ended.flatten(batch.ndim).all(-1)
    return lost.view(*lost.shape, *(1,) * (own.ndim - lost.ndim)) & ~own


def _members_left_out(
    batch: TensorDictBase, terminated: NestedKey, done: NestedKey
) -> Tensor | None:
    """Members that are out, or need a next observation and have none, bool ``[*B, T, *G]``."""
    out, lost = absent_members(batch, terminated, done), members_without_next(batch, terminated)
    if lost is None:
        return out
    ended = member_flag(batch, terminated, find(batch, under_next(terminated)))
    lost = lost if ended is None else lost & ~ended
    return lost if out is None else out | lost


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
    real, seen = step_flag(batch, keys.MASK, mask), copied(batch)
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

    They are done at the root already, or False in the group's ``"mask"`` and not waiting.
    """
    group = group_of(terminated)
    if not group:
        return None
    name = as_tuple(done)[-1] if group_of(done) == group else keys.DONE
    out = member_flag(batch, terminated, find(batch, (*group, name)))
    told = find(batch, (*group, keys.MASK[-1]))
    mask = member_flag(batch, terminated, told)
    if mask is None:
        if isinstance(told, Tensor) and member_flag(batch, terminated, told.bool()) is not None:
            msg = (
                f"{(*group, keys.MASK[-1])!r}: expected torch.bool, False where a member is out, "
                f"got {told.dtype}. Call .bool(), or rename it if it is something else."
            )
            raise TypeError(msg)
        return out
    waits = waiting_members(batch, terminated)
    absent = ~mask if waits is None else ~(mask | waits)
    return absent if out is None else out | absent


def waiting_members(batch: TensorDictBase, terminated: NestedKey) -> Tensor | None:
    """Members of a group that are in and wait for their turn, bool ``[*B, T, *G]``, or None."""
    group = group_of(terminated)
    return member_flag(batch, terminated, find(batch, (*group, keys.WAITING))) if group else None


def acting_steps(
    batch: TensorDictBase, counted: Tensor | None, terminated: NestedKey
) -> Tensor | None:
    """Those of the counted steps in which members act, and do not wait for their turn."""
    waits = waiting_members(batch, terminated)
    if waits is None:
        return counted
    return ~waits if counted is None else counted & ~waits


def refuse_flags_of_others(
    batch: TensorDictBase, advantage: NestedKey, terminated: NestedKey
) -> None:
    """Raise where advantages are of a group that has flags, and those of another one are read."""
    group = group_of(advantage)
    own = (*group, as_tuple(terminated)[-1])
    if group in ((), group_of(terminated)) or find(batch, as_tuple(advantage)) is None:
        return
    if find(batch, next_key(own)) is not None:
        done = (*group, keys.DONE)
        msg = (
            f"{as_tuple(advantage)!r} is of members that have done flags of their own, and "
            f"{terminated!r} is read, so that steps of members that are out would count: call "
            f"set_keys(terminated={own!r}, done={done!r})."
        )
        raise ValueError(msg)


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
