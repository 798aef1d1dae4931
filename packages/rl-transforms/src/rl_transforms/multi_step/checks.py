"""What is refused before rows are made to reach n steps ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_key, leaves
from rl_transforms.arguments import check_number, check_whole, shown
from rl_transforms.entries import missing


def check_horizon(gamma: float, n_steps: int) -> None:
    """Refuse a discount or a number of steps out of range.

    Args:
        gamma: discount of a step.
        n_steps: how far to reach.

    Raises:
        ValueError: the discount is not above 0 and at most 1, or the steps are fewer than 1.

    Example:
        >>> check_horizon(0.99, 3)
    """
    check_number("gamma", gamma)
    if not 0 < gamma <= 1:
        msg = f"gamma: expected a discount above 0 and at most 1, got {gamma}."
        raise ValueError(msg)
    check_whole("n_steps", n_steps, 1)


def check_rows(batch: TensorDictBase, reward_keys: Sequence[NestedKey]) -> dict[NestedKey, Tensor]:
    """Refuse rows that cannot be extended, and read their rewards.

    Args:
        batch: TED rows ``[N]`` or ``[*B, T]``.
        reward_keys: rewards, by their keys without ``"next"``.

    Returns:
        The rewards ``[N, ...]`` by key.

    Raises:
        KeyError: ``"next"`` or a reward is missing.
        TypeError: a reward is not floating-point.
        ValueError: the rows have several steps already, or their next observations are deltas.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> check_rows(trajectories([2]), ["reward"])["reward"].flatten()
        tensor([1., 2.])
    """
    if not isinstance(batch, TensorDictBase):
        msg = f"expected a TED tensordict [N] or [*B, T], got {shown(batch)}."
        raise TypeError(msg)
    if batch.get(keys.NEXT, None) is None:
        raise missing("multi_step", keys.NEXT, batch)
    refuse_far_rows(
        batch.get(keys.STEPS_TO_NEXT_OBS, None) is not None,
        batch.get(keys.DELTA, None) is not None,
    )
    return {key: flat_reward(batch, key) for key in reward_keys}


def refuse_far_rows(
    has_steps: bool,
    has_deltas: bool,
    cure: str = "Compose(NextObservationDelta(), MultiStep(...))",
) -> None:
    """Refuse rows whose next observation is not that of one step.

    Args:
        has_steps: whether they say how far away it is.
        has_deltas: whether it is stored as a difference.
        cure: what rebuilds differences first, for the message.

    Raises:
        ValueError: either is so.

    Example:
        >>> refuse_far_rows(has_steps=False, has_deltas=False)
    """
    if has_steps:
        msg = f"the rows have {keys.STEPS_TO_NEXT_OBS} already: n-step rows cannot be extended."
        raise ValueError(msg)
    if has_deltas:
        msg = (
            f"next observations lie under {keys.DELTA} as deltas of one step: rebuild them "
            f"first, by {cure}."
        )
        raise ValueError(msg)


def check_groups(batch: TensorDictBase, ends: Tensor) -> None:
    """Refuse a group that ends where its environment goes on: it needs horizons of its own.

    Args:
        batch: TED rows ``[N]`` or ``[*B, T]``.
        ends: bool ``[N]``, the last row of each segment.

    Raises:
        ValueError: a nested done flag is set elsewhere.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> check_groups(trajectories([2]), torch.tensor([False, True]))
    """
    count = batch.batch_size.numel()
    flags = {
        next_key(as_key(key)): flag.reshape(count, -1)
        for key, flag in leaves(batch[keys.NEXT])
        if len(key) > 1 and key[-1] in keys.DONE_KEYS
    }
    check_group_flags(flags, ends)


def check_group_flags(rows: Mapping[tuple[str, ...], Tensor], ends: Any) -> None:
    """Refuse a group that ends where its environment goes on, given flat leaves.

    Args:
        rows: leaves ``[N, ...]`` by their keys; others than nested done flags do not count.
        ends: bool ``[N]``, a tensor or an array, the last row of each segment.

    Raises:
        ValueError: a nested done flag is set elsewhere.

    Example:
        >>> flag = torch.tensor([False, True])
        >>> check_group_flags({("next", "agents", "done"): flag}, flag)
    """
    for key, flag in rows.items():
        if len(key) < 3 or key[0] != keys.NEXT or key[-1] not in keys.DONE_KEYS:
            continue
        others = ~torch.as_tensor(ends, device=flag.device)
        if (flag.reshape(len(ends), -1).any(1) & others).any():
            msg = (
                f"{key!r} ends where its trajectory goes on: n-step rows of a nested "
                "group that ends on its own are not supported. Use n_steps=1."
            )
            raise ValueError(msg)


def flat_reward(batch: TensorDictBase, key: NestedKey) -> Tensor:
    """Read one reward.

    Args:
        batch: TED rows of N in all, ``[*B, T]``.
        key: its key without ``"next"``.

    Returns:
        ``[N, ...]``.

    Raises:
        KeyError: it is missing.
        TypeError: it is not floating-point.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> flat_reward(trajectories([2]), "reward").shape
        torch.Size([2, 1])
    """
    reward: Tensor | None = batch.get(next_key(key), None)
    if reward is None:
        raise missing("multi_step", next_key(key), batch)
    if not reward.is_floating_point():
        msg = f"{next_key(key)!r}: expected floating-point rewards, got {reward.dtype}. Cast them."
        raise TypeError(msg)
    return reward.reshape(-1, *reward.shape[batch.ndim :])
