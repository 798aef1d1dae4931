"""The markers of a batch, written when its steps are finished."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_tensordict import find
from rl_tensordict.types import KeyPath


def ends_of(batch: TensorDictBase) -> Tensor:
    """Find the steps that end a trajectory, bool `[*B, T]` on the CPU."""
    # The root's done flag decides. If there is none, a trajectory is over when everyone in every
    # group is done at the same step.
    root = find(batch, keys.NEXT_DONE)
    if isinstance(root, Tensor) and root.shape == (*batch.batch_size, 1):
        return root.squeeze(-1).cpu()
    flags = [root] if root is not None else _group_flags(batch)
    if not flags:
        msg = "the batch has no done flag under 'next': the environment must return one."
        raise KeyError(msg)
    over = [flag.flatten(batch.ndim).all(-1) for flag in flags]
    return torch.stack(over).all(0).cpu()


def compact(batch: TensorDictBase, observation_keys: list[keys.NestedKey]) -> TensorDictBase:
    """Leave out what a row's successor holds at its root."""
    dropped = [keys.next_key(key) for key in (*observation_keys, keys.IS_INIT)]
    return batch.exclude(*dropped)


def _group_flags(batch: TensorDictBase) -> list[Tensor]:
    found = [leaf for key, leaf in keys.leaves(batch) if (key[0], key[-1]) == keys.NEXT_DONE]
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


class GroupStarts:
    """Writes `is_init` for each nested group with done flags, and continues batch to batch."""

    # A group begins with its environment. Where the root has no done flag a group is reset for
    # itself, and begins again after its own end.

    def __init__(self, groups: list[KeyPath]) -> None:
        self._groups = [prefix for prefix in groups if prefix]
        self._resets_itself = () not in groups
        self._over: dict[str, Tensor] = {}  # of the step before, by the number of the group

    def mark(self, batch: TensorDictBase) -> None:
        """Write the flags, in place."""
        if not self._groups:
            return
        time, later = batch.ndim - 1, batch.shape[-1] - 1
        for number, prefix in enumerate(self._groups):
            done: Tensor = batch.get((keys.NEXT, *prefix, keys.DONE))
            first = batch.get(keys.IS_INIT).reshape(*batch.shape, *[1] * (done.ndim - batch.ndim))
            first = first.expand_as(done).clone()
            if self._resets_itself:
                first.narrow(time, 1, later).logical_or_(done.narrow(time, 0, later))
                before = self._over.get(str(number))
                if before is not None:
                    first.select(time, 0).logical_or_(before.to(first.device))
                self._over[str(number)] = done.select(time, -1).clone()
            batch.set((*prefix, keys.IS_INIT), first)

    def state_dict(self) -> dict[str, Any]:
        """Which groups have just ended."""
        return {number: flag.clone() for number, flag in self._over.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a saved one stopped."""
        self._over = {number: flag.clone() for number, flag in state.items()}
