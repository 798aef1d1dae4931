"""Which steps are real, and what networks may read of the others."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import NestedKey, as_tuple
from rl_layout.markers import flat_marker
from rl_layout.tensordict_fast import find


def readable(batch: TensorDictBase, *networks: TensorDictModuleBase | None) -> TensorDictBase:
    """The batch as networks may read it: what floats is 0 on padding, which may hold anything.

    Left as it is, a NaN there would be no part of any loss and yet of the gradients, as 0 · NaN.

    Args:
        batch: a TED tensordict ``[*B, T]``; it is not changed.
        networks: whose inputs count.

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
        [[7.0, 0.0], [0.0, 0.0]]
    """
    mask = find(batch, keys.MASK)
    if mask is None:
        return batch
    real, seen = step_flag(batch, keys.MASK, mask), batch.copy()
    read = [key for network in networks if network is not None for key in network.in_keys]
    for key in dict.fromkeys(map(as_tuple, read)):
        leaf = find(batch, key)
        if leaf is not None and leaf.is_floating_point():
            alike = real.view(*real.shape, *(1,) * (leaf.ndim - real.ndim))
            seen.set(key, torch.where(alike, leaf, 0))
    return seen


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
