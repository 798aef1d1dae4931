"""Surplus steps: what a vector environment has played beyond a rollout, for the next one."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.rollouts.columns import Columns, as_array, as_tensor
from rl_layout import keys
from rl_tensordict import build, nest
from rl_tensordict.types import KeyPath


@dataclass(frozen=True)
class SurplusSteps:
    """Surplus steps of a vector environment, and the root after them."""

    # Rows of a vector that resets while it steps do not all get their T-th step at the same time.
    # Those that had theirs earlier were stepped with the others; these steps open the next batch.

    # leaves [B, S + 1, ...] by key. ("collector", "mask") says which of the first S are steps that
    # no rollout has returned; the last column holds a root alone
    columns: Mapping[KeyPath, Tensor]
    written: Set[KeyPath]  # keys that the policy wrote
    last: TensorDictBase | None = None  # [B], the last step that was returned, or None
    # whether it has passed every transform, the deferrable ones included
    is_whole: bool = False

    @property
    def num_steps(self) -> int:
        """S, how many columns hold steps."""
        return self.columns[keys.MASK].shape[-1] - 1

    @classmethod
    def of(
        cls, columns: Columns, written: Set[KeyPath], num_played: int, num_returned: int
    ) -> SurplusSteps:
        """Copy the steps after the first T real ones of each row, and the root after them."""
        # num_played: S columns, with the root in column S; num_returned: T
        mask = columns.tensors[keys.MASK][:, :num_played]
        beyond = mask & (mask.cumsum(-1) > num_returned)
        first = int(beyond.any(0).int().argmax()) if bool(beyond.any()) else num_played
        kept = {
            key: leaf[:, first : num_played + 1].clone() for key, leaf in columns.tensors.items()
        }
        kept[keys.MASK][:, :-1] = beyond[:, first:]
        kept[keys.MASK][:, -1] = False
        return cls(kept, set(written))

    def mark_first_steps(self, rows: Tensor) -> None:
        """Set `is_init` in the next step of some rows, bool `[B]`, if the columns hold it."""
        # the policy that played a surplus step did not see this mark
        flag = self.columns.get((keys.IS_INIT,))
        if flag is None:
            return
        mask = self.columns[keys.MASK].clone()
        mask[:, -1] = True  # the root, where no step is kept
        first = mask.int().argmax(1)[rows]
        flag[rows.nonzero()[:, 0], first] = True

    def load_into(self, columns: Columns) -> None:
        """Copy into the first S + 1 columns of a batch, adding columns for the policy's outputs."""
        expected = columns.tensors.keys() | (self.written if self.num_steps else set())
        there = self.columns.keys() if self.num_steps else self.columns.keys() & expected
        differing = sorted(str(keys.as_key(key)) for key in expected ^ there)
        if differing:
            msg = (
                f"the steps kept from the rollout before and this one differ in {differing}: "
                f"reset first, or continue with the same transforms and the same policy."
            )
            raise ValueError(msg)
        for key in there:
            leaf = self.columns[key]
            if key not in columns.tensors:
                columns.add(key, leaf.shape[2:], leaf.dtype)
            columns.tensors[key][:, : leaf.shape[1]] = leaf


def real_steps(batch: TensorDictBase, num_steps: int) -> TensorDictBase:
    """Return the first T real steps of each row, `[B, T]`, without the mask."""
    # T shrinks to what the shortest row has
    mask = batch.get(keys.MASK).numpy()
    num_rows, num_played = mask.shape
    so_far = np.cumsum(mask, 1, dtype=np.int32)  # [B, S], real steps up to each column
    num_steps = min(num_steps, int(so_far[:, -1].min()))
    row, column = np.divmod(np.flatnonzero(mask & (so_far <= num_steps)), num_played)
    places = column * num_rows + row  # flat positions [B * T] in leaves that are time first
    sizes = torch.Size((num_rows, num_steps))
    kept = {}
    for key, leaf in keys.leaves(batch):
        if key != keys.MASK:
            by_time = leaf.movedim(1, 0)
            rows = as_array(by_time).reshape(-1, *by_time.shape[2:])
            found = as_tensor(rows.take(places, 0), leaf.dtype)
            kept[key] = found.view(*sizes, *rows.shape[1:])
    return build(nest(kept), sizes, [None, keys.TIME])
