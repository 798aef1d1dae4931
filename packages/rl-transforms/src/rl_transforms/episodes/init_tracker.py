"""Marking the first step of every trajectory."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_specs import Binary, TensorSpec
from rl_tensordict import device_of_data
from rl_transforms.entries import with_entries
from rl_transforms.episodes.groups import GroupTransform, group_mask, next_done


class InitTracker(GroupTransform):
    """Writes ``is_init``: True at the first step of a trajectory, at the root only.

    A reset writes True in the rows that were reset, a step writes False under ``"next"``, which
    moves to the root. A nested done group, as ``("agents", "done")`` makes one, has a flag of its
    own: ``("agents", "is_init")``.

    It runs at every step, since recurrent policies read it; where none does, `online` can be set
    to False, and `rows` finds the same flags on finished rows.

    Args:
        init_key: the last part of the flag's key. Samplers read ``"is_init"`` only.

    Raises:
        TypeError: the key is no string.

    Example:
        >>> from tensordict import TensorDict
        >>> root = TensorDict({"is_init": torch.zeros(2, 1, dtype=torch.bool)}, [2])
        >>> InitTracker().reset(root, torch.tensor([False, True]))["is_init"].tolist()
        [[False], [True]]
    """

    def __init__(self, init_key: str = keys.IS_INIT) -> None:
        super().__init__(init_key, torch.bool)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Mark the rows that were reset.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with ``is_init`` ``[*B, 1]``; rows outside the mask keep theirs, or have False.

        Raises:
            TypeError: the mask is not boolean.
            ValueError: it does not have the shape of the batch.
        """
        changes, device = {}, device_of_data(root)
        for group, shape in self._learned(root, mask is None).items():
            fresh, key = group_mask(mask, shape, device), self._key(group)
            kept = root.get(key, None)
            # `or`: a first step stays one if a neighbour is reset before it was taken
            changes[key] = fresh.clone() if mask is None or kept is None else fresh | kept
        return with_entries(root, changes)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Mark that a step is never the first: False under ``"next"``."""
        device = device_of_data(after)
        changes = {
            self._key(group): torch.zeros(shape, dtype=torch.bool, device=device)
            for group, shape in self._learned(after, False).items()
        }
        return with_entries(after, changes)

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Mark the first steps in finished rows.

        Where the rows have ``("collector", "traj_step")``, a first step is a step 0. Otherwise it
        is one after a done step.

        Args:
            batch: ``[*B, T]`` in the order of collection.
            last: ``[*B]``, the column before these; None if the first follows a reset.

        Returns:
            The rows with ``is_init`` ``[*B, T, 1]``, at the root only.

        Raises:
            KeyError: a group has no done flag under ``"next"``.
        """
        steps = batch.get(keys.TRAJ_STEP, None)
        changes = {}
        for group in self._groups_of_rows(batch):
            if not group and steps is not None:
                changes[self._key(group)] = steps.unsqueeze(-1) == 0
            else:
                changes[self._key(group)] = self._behind_done(batch, last, group)
        return with_entries(batch, changes)

    def _behind_done(
        self, batch: TensorDictBase, last: TensorDictBase | None, group: tuple[str, ...]
    ) -> Tensor:
        done = next_done(self, batch, group)
        time = batch.ndim - 1
        if last is None:
            first = torch.ones_like(done.narrow(time, 0, 1))
        else:
            first = next_done(self, last, group).unsqueeze(time)
        # done flags [*B, T, 1] one step later: the step after a done one is a first one
        return torch.cat([first, done.narrow(time, 0, done.shape[time] - 1)], time)

    def _own_spec(self, shape: torch.Size) -> TensorSpec:
        return Binary(shape=shape, dtype=torch.bool)
