"""Where the trajectories of groups begin, which have done flags of their own."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys

Prefix = tuple[str, ...]


class GroupStarts:
    """Writes `is_init` for each nested group with done flags, and continues batch to batch."""

    # A group begins with its environment. Where the root has no done flag a group is reset for
    # itself, and begins again after its own end.

    def __init__(self, groups: list[Prefix]) -> None:
        self._groups = [prefix for prefix in groups if prefix]
        self._resets_itself = () not in groups
        self._over: dict[str, Tensor] = {}  # of the step before, by the number of the group

    def mark(self, batch: TensorDictBase) -> None:
        """Write the flags, in place."""
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
