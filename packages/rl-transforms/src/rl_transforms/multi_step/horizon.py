"""n-step rows computed from flat one-step rows and their trajectory order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rl_layout import keys
from rl_tensordict.types import Array
from rl_transforms.multi_step.flat_leaves import FlatRows, LeafPath
from rl_transforms.multi_step.on_sample import sums_ahead
from rl_transforms.multi_step.trajectory_order import TrajectoryOrder

TakeLeaf = Callable[[LeafPath], Tensor]

FEW = 16  # steps up to which rewards are gathered as [K, n]; more are summed by doubling


@dataclass(frozen=True)
class Horizon:
    """The number of steps that rows span, and the rewards to sum over them."""

    n_steps: int  # n, at least 1
    gamma: float  # discount of a step
    rewards: Collection[LeafPath]  # keys of the rewards, "next" included

    def n_step_rows(
        self, rows: FlatRows, order: TrajectoryOrder, chosen: Array, steps_kept: int | None = None
    ) -> FlatRows:
        """Compute the n-step rows of the rows `chosen`, int64 ``[K]``."""
        # steps_kept: `chosen` are the first steps of every row of [*B, T], so own leaves are views
        position, remaining = order.position[chosen], order.remaining[chosen]
        steps = np.minimum(remaining, self.n_steps)  # [K], fewer at the end of a segment
        # the row whose next observation and flags each row takes
        own, target = rows.index(chosen), rows.index(order.sorted_rows[position + steps - 1])
        shape = (len(chosen),) if steps_kept is None else (*rows.shape[:-1], steps_kept)
        return self._combined(
            replace(rows, shape=torch.Size(shape)),
            rows.index(steps),
            own=lambda key: self._own(rows, rows.leaves[key], own, steps_kept),
            ahead=lambda key: rows.leaves[key].index_select(0, target),
            sums=lambda key: self._sums(rows, order, rows.leaves[key], chosen),
        )

    def n_step_row(self, rows: Sequence[FlatRows]) -> FlatRows:
        """Compute the n-step row of the first of n single rows that continue each other."""
        first, last = rows[0], rows[-1]
        return self._combined(
            first,
            first.index(np.array([self.n_steps])),
            own=lambda key: first.leaves[key],
            ahead=lambda key: last.leaves[key].clone(),
            sums=lambda key: self._weighted(torch.stack([row.leaves[key] for row in rows], 1)),
        )

    def _combined(
        self, rows: FlatRows, steps: Tensor, *, own: TakeLeaf, ahead: TakeLeaf, sums: TakeLeaf
    ) -> FlatRows:
        """The leaves of n-step rows: some are a row's own, some those n steps ahead, some sums."""
        leaves: dict[LeafPath, Tensor] = {keys.STEPS_TO_NEXT_OBS: steps}
        tails = dict(rows.tails)
        tails[keys.STEPS_TO_NEXT_OBS] = torch.Size([1])
        for key in rows.leaves:
            if key in self.rewards:
                leaves[key] = sums(key)
                name = (*key[:-1], f"original_{key[-1]}")
                leaves[name], tails[name] = own(key), rows.tails[key]
            else:
                is_ahead = key[0] == keys.NEXT or key == keys.NEXT_MISSING
                leaves[key] = ahead(key) if is_ahead else own(key)
        return replace(rows, leaves=leaves, tails=tails)

    def _own(self, rows: FlatRows, leaf: Tensor, own: Tensor, steps_kept: int | None) -> Tensor:
        if steps_kept is None:
            return leaf.index_select(0, own)
        return leaf.reshape(*rows.shape, *leaf.shape[1:]).narrow(len(rows.shape) - 1, 0, steps_kept)

    def _sums(
        self, rows: FlatRows, order: TrajectoryOrder, reward: Tensor, chosen: Array
    ) -> Tensor:
        """n-step sums ``[K, ...]`` of the rewards ``[N, ...]`` from some rows on."""
        if self.n_steps > FEW:
            inside = rows.index(order.remaining[order.sorted_rows] - 1)
            by_trajectory = reward.index_select(0, rows.index(order.sorted_rows))
            sums = sums_ahead(by_trajectory, inside, self.gamma, self.n_steps)
            return sums.index_select(0, rows.index(order.position[chosen]))
        # a gather of [K, n] rewards takes fewer and smaller operations for a few steps
        ahead = np.arange(self.n_steps)
        in_segment = ahead < order.remaining[chosen][:, None]  # [K, n]
        index = order.sorted_rows[np.where(in_segment, order.position[chosen][:, None] + ahead, 0)]
        gathered = reward.index_select(0, rows.index(index.reshape(-1)))
        # where, not a product: 0 * inf is NaN, and a reward past the end may be infinite
        mask = rows.index(in_segment).reshape(-1, *[1] * (reward.ndim - 1))
        return self._weighted(gathered.where(mask, 0).unflatten(0, in_segment.shape))

    def _weighted(self, rewards: Tensor) -> Tensor:
        """Discounted sums ``[K, ...]`` of rewards ``[K, n, ...]``."""
        discounts = torch.from_numpy(self.gamma ** np.arange(self.n_steps)).to(rewards)
        sums = torch.matmul(discounts, rewards.reshape(*rewards.shape[:2], -1))  # [K, F]
        return sums.reshape(-1, *rewards.shape[2:])
