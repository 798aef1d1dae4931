"""Slow, plain twins: one Python loop over rows each, to check the fast ones against."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import MarkedRow, continues, marked_rows
from rl_tensordict import CPU, NestedKey


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
    made, marked = [], marked_rows(batch)
    for row in range(len(batch)):
        rows = _rows_ahead(marked, row, n_steps)
        total = sum(gamma**k * float(batch[keys.NEXT_REWARD][at]) for k, at in enumerate(rows))
        one = TensorDict(batch[row].to_dict(), [])
        original = one[keys.NEXT_REWARD]
        one[keys.NEXT] = batch[rows[-1]][keys.NEXT].clone()
        one[keys.NEXT_REWARD] = torch.full_like(original, total)
        one[keys.NEXT, "original_reward"] = original
        one[keys.STEPS_TO_NEXT_OBS] = torch.tensor([len(rows)], device=CPU)
        made.append(one)
    stacked: TensorDict = torch.stack(made)
    return stacked


def next_rows(batch: TensorDictBase) -> Tensor:
    """Find the row that holds each row's next observation, by the markers alone."""
    # batch: TED rows ``[N]``.
    # returns: int64 ``[N]``; -1 where no row is proved to hold it.
    found, marked = [], marked_rows(batch)
    for row in range(len(batch)):
        far = batch.get(keys.STEPS_TO_NEXT_OBS, None)
        wanted = 1 if far is None else int(far[row])
        rows = _rows_ahead(marked, row, wanted + 1)
        found.append(rows[wanted] if len(rows) > wanted else -1)
    return torch.tensor(found, device=CPU)


def cat_frames(
    batch: TensorDictBase, key: NestedKey, num_frames: int, constant: float | None = None
) -> tuple[Tensor, Tensor]:
    """Lay the last frames of each row side by side along the last dimension, row by row."""
    # batch: TED rows ``[N]`` with ``traj_step``, all real.
    # key: frames ``[N, ..., D]``.
    # returns: Stacks ``[N, ..., F * D]``, and where a frame that there was is not in the batch,
    #     bool ``[N]``.
    stacks, missing, marked = [], [], marked_rows(batch)
    for row in range(len(batch)):
        held = [row]
        while len(held) < num_frames and held[0] and continues(*marked[held[0] - 1 : held[0] + 1]):
            held.insert(0, held[0] - 1)
        frames = [batch[key][one] for one in held]
        pad = frames[0] if constant is None else torch.full_like(frames[0], constant)
        stacks.append(torch.cat([*[pad] * (num_frames - len(held)), *frames], -1))
        missing.append(len(held) < num_frames and int(batch[keys.TRAJ_STEP][held[0]]) > 0)
    return torch.stack(stacks), torch.tensor(missing, device=CPU)


def _rows_ahead(marked: list[MarkedRow], row: int, most: int) -> list[int]:
    """A row and the rows that follow it in its trajectory, at most so many."""
    rows = [row]
    while len(rows) < most and rows[-1] + 1 < len(marked):
        if not continues(marked[rows[-1]], marked[rows[-1] + 1]):
            break
        rows.append(rows[-1] + 1)
    return rows
