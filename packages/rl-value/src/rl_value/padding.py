"""What networks may read of rows that are padding."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rl_layout import keys
from rl_layout.keys import as_tuple
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
    shape, seen = batch.batch_size, batch.copy()
    singleton = mask.shape == (*shape, 1)
    real = flat_marker(mask, shape, keys.MASK, torch.bool, singleton).view(shape)
    read = [key for network in networks if network is not None for key in network.in_keys]
    for key in dict.fromkeys(map(as_tuple, read)):
        leaf = find(batch, key)
        if leaf is not None and leaf.is_floating_point():
            alike = real.view(*real.shape, *(1,) * (leaf.ndim - real.ndim))
            seen.set(key, torch.where(alike, leaf, 0))
    return seen
