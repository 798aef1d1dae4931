"""n-step rows computed from flat one-step rows and their trajectory order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rl_layout import keys
from rl_transforms.multi_step.flat_leaves import FlatRows, Path
from rl_transforms.multi_step.on_sample import sums_ahead
from rl_transforms.multi_step.trajectory_order import Array, Arrivals

FEW = 16  # steps up to which rewards are gathered as [K, n]; more are summed by doubling


@dataclass(frozen=True)
class Horizon:
    """The number of steps that rows span, and the rewards to sum over them."""

    n_steps: int  # n, at least 1
    gamma: float  # discount of a step
    rewards: Collection[Path]  # keys of the rewards, "next" included

    def of(
        self, rows: FlatRows, stand: Arrivals, kept: Array, steps_kept: int | None = None
    ) -> FlatRows:
        """Compute the n-step rows of the rows `kept`, int64 ``[K]``."""
        # steps_kept: `kept` are the first steps of every row of [*B, T], so own leaves are views
        place, left = stand.place[kept], stand.left[kept]
        steps = np.minimum(left, self.n_steps)  # [K], fewer at the end of a segment
        # the row whose next observation and flags each row takes
        own, target = rows.index(kept), rows.index(stand.order[place + steps - 1])
        made: dict[Path, Tensor] = {keys.STEPS_TO_NEXT_OBS: rows.index(steps)}
        tails = dict(rows.tails)
        tails[keys.STEPS_TO_NEXT_OBS] = torch.Size([1])
        for key, leaf in rows.leaves.items():
            if key in self.rewards:
                made[key] = self._sums(rows, stand, leaf, kept)
                name = (*key[:-1], f"original_{key[-1]}")
                made[name], tails[name] = self._own(rows, leaf, own, steps_kept), rows.tails[key]
            elif key[0] == keys.NEXT or key == keys.NEXT_MISSING:
                made[key] = leaf.index_select(0, target)
            else:
                made[key] = self._own(rows, leaf, own, steps_kept)
        shape = (len(kept),) if steps_kept is None else (*rows.shape[:-1], steps_kept)
        return replace(rows, leaves=made, tails=tails, shape=torch.Size(shape))

    def _own(self, rows: FlatRows, leaf: Tensor, own: Tensor, steps_kept: int | None) -> Tensor:
        if steps_kept is None:
            return leaf.index_select(0, own)
        return leaf.reshape(*rows.shape, *leaf.shape[1:]).narrow(len(rows.shape) - 1, 0, steps_kept)

    def _sums(self, rows: FlatRows, stand: Arrivals, reward: Tensor, kept: Array) -> Tensor:
        """n-step sums ``[K, ...]`` of the rewards ``[N, ...]`` from some rows on."""
        if self.n_steps > FEW:
            order, inside = rows.index(stand.order), rows.index(stand.left[stand.order] - 1)
            sums = sums_ahead(reward.index_select(0, order), inside, self.gamma, self.n_steps)
            return sums.index_select(0, rows.index(stand.place[kept]))
        # a gather of [K, n] rewards takes fewer and smaller operations for a few steps
        ahead = np.arange(self.n_steps)
        there = ahead < stand.left[kept][:, None]  # [K, n]
        looked_up = stand.order[np.where(there, stand.place[kept][:, None] + ahead, 0)]
        found = reward.index_select(0, rows.index(looked_up.reshape(-1)))
        # where, not a product: 0 * inf is NaN, and a reward past the end may be infinite
        is_there = rows.index(there).reshape(-1, *[1] * (reward.ndim - 1))
        real = found.where(is_there, 0).reshape(*there.shape, -1)  # [K, n, F]
        discounts = rows.index(self.gamma**ahead).to(reward.dtype)
        return torch.matmul(discounts, real).reshape(-1, *reward.shape[1:])
