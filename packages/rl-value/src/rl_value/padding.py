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
    """The batch as networks and distributions may read it: on padding what a real step holds.

    Padding may hold anything. Left as it is, a NaN there would be no part of any loss and yet of
    the gradients, as 0 · NaN, and an action that is none would be refused.

    Args:
        batch: a TED tensordict ``[*B, T]``; it is not changed.
        networks: whose inputs count.
        more: other keys that are read, where they are there.

    Returns:
        The batch itself where it has no mask.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: the mask has another shape than the batch.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> batch = trajectories([2])
        >>> batch["collector", "mask"] = torch.tensor([True, False])
        >>> net = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> readable(batch, net)["observation"].tolist()
        [[7.0, 0.0], [7.0, 0.0]]
    """
    mask = find(batch, keys.MASK)
    if mask is None or not mask.numel():
        return batch
    real, seen = step_flag(batch, keys.MASK, mask), batch.copy()
    flat = real.reshape(-1)
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
    """A flag of the steps of a batch, with or without a last dimension of size 1.

    Args:
        batch: of batch size ``[*B, T]``.
        key: its key, for the message.
        value: bool ``[*B, T]`` or ``[*B, T, 1]``.

    Returns:
        bool ``[*B, T]``.

    Raises:
        TypeError: it is not boolean.
        ValueError: it has another shape than the batch.

    Example:
        >>> from tensordict import TensorDict
        >>> step_flag(TensorDict({}, [2]), "flag", torch.tensor([[True], [False]]))
        tensor([ True, False])
    """
    shape = batch.batch_size
    singleton = value.shape == (*shape, 1)
    return flat_marker(value, shape, key, torch.bool, singleton).view(shape)
