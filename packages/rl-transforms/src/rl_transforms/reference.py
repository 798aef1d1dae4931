"""Slow, plain twins: one Python loop over rows each, to check the fast ones against."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.reference import continues


def multi_step(batch: TensorDictBase, gamma: float, n_steps: int) -> TensorDict:
    """Make rows reach n steps ahead, row by row.

    Args:
        batch: TED rows ``[N]`` with ``("next", "reward")``, all real.
        gamma: discount of a step.
        n_steps: how far to reach.

    Returns:
        The n-step rows ``[N]``, as `rl_transforms.multi_step` makes them.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> multi_step(trajectories([3]), 0.5, 2)["next", "reward"].flatten()
        tensor([2.0000, 3.5000, 3.0000])
    """
    made = []
    for row in range(len(batch)):
        reached, total, steps = row, float(batch[keys.NEXT_REWARD][row]), 1
        while (
            steps < n_steps and reached + 1 < len(batch) and continues(batch, reached, reached + 1)
        ):
            reached += 1
            total += gamma**steps * float(batch[keys.NEXT_REWARD][reached])
            steps += 1
        one = TensorDict(batch[row].to_dict(), [])
        original = one[keys.NEXT_REWARD]
        one[keys.NEXT] = batch[reached][keys.NEXT].clone()
        one[keys.NEXT_REWARD] = torch.full_like(original, total)
        one[keys.NEXT, "original_reward"] = original
        one[keys.STEPS_TO_NEXT_OBS] = torch.tensor([steps])
        made.append(one)
    stacked: TensorDict = torch.stack(made)
    return stacked


def next_rows(batch: TensorDictBase) -> Tensor:
    """Find the row that holds each row's next observation, by the markers alone.

    Args:
        batch: TED rows ``[N]``.

    Returns:
        int64 ``[N]``; -1 where no row is proved to hold it.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> next_rows(trajectories([2, 3]))
        tensor([ 1, -1,  3,  4, -1])
    """
    found = []
    for row in range(len(batch)):
        far = batch.get(keys.STEPS_TO_NEXT_OBS, None)
        wanted = 1 if far is None else int(far[row])
        reached, steps = row, 0
        while (
            steps < wanted and reached + 1 < len(batch) and continues(batch, reached, reached + 1)
        ):
            reached, steps = reached + 1, steps + 1
        found.append(reached if steps == wanted else -1)
    return torch.tensor(found)
