"""Which steps are real, and what networks may read of the others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import flat_marker
from rl_tensordict import NestedKey, as_tuple, find


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


def _marks(key: tuple[str, ...]) -> bool:
    """Whether an entry says what is a step and what is not."""
    return key[0] == keys.COLLECTOR or key[-1] == keys.IS_INIT


def step_flag(batch: TensorDictBase, key: NestedKey, value: Tensor) -> Tensor:
    """A flag of the steps of a batch, with or without a last dimension of size 1."""
    shape = batch.batch_size
    singleton = value.shape == (*shape, 1)
    return flat_marker(value, shape, key, torch.bool, singleton).view(shape)
