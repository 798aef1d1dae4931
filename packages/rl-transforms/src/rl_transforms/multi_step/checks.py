"""Checks of one-step rows, and warnings of n-step rows that span fewer than n steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_number, check_whole, shown
from rl_tensordict.types import KeyPath
from rl_transforms.entries import required


def check_horizon(gamma: float, n_steps: int) -> None:
    """Raise for a discount or a number of steps out of range."""
    check_number("gamma", gamma)
    if not 0 < gamma <= 1:
        msg = f"gamma: expected a discount above 0 and at most 1, got {gamma}."
        raise ValueError(msg)
    check_whole("n_steps", n_steps, 1)


def check_rows(batch: TensorDictBase, reward_keys: Sequence[NestedKey]) -> dict[NestedKey, Tensor]:
    """Raise for rows that cannot be extended; return their rewards ``[N, ...]`` by key."""
    if not isinstance(batch, TensorDictBase):
        msg = f"expected a TED tensordict [N] or [*B, T], got {shown(batch)}."
        raise TypeError(msg)
    required("multi_step", batch, keys.NEXT)
    check_single_steps(
        batch.get(keys.STEPS_TO_NEXT_OBS, None) is not None,
        batch.get(keys.DELTA, None) is not None,
    )
    return {key: flat_reward(batch, key) for key in reward_keys}


def check_single_steps(
    has_steps: bool,
    has_deltas: bool,
    cure: str = "Compose(NextObservationDelta(), MultiStep(...))",
) -> None:
    """Raise for n-step rows, and for next observations stored as differences."""
    if has_steps:
        msg = f"the rows have {keys.STEPS_TO_NEXT_OBS} already: n-step rows cannot be extended."
        raise ValueError(msg)
    if has_deltas:
        msg = (
            f"next observations are under {keys.DELTA} as deltas of one step: rebuild them "
            f"first, by {cure}."
        )
        raise ValueError(msg)


def check_groups(flags: Iterable[tuple[KeyPath, Tensor]], ends: Any) -> None:
    """Raise for a nested group that ends before its environment: it needs its own horizons."""
    for key, flag in flags:  # [*B, T, ...] or [N, ...], compared as [N, F]
        if not is_group_flag(key):
            continue
        # the rows after which the trajectory continues, bool [N]
        others = ~torch.as_tensor(ends, device=flag.device)
        if (flag.reshape(len(ends), -1).any(1) & others).any():
            msg = (
                f"{key!r} ends where its trajectory continues: n-step rows of a nested "
                "group that ends on its own are not supported. Use n_steps=1."
            )
            raise ValueError(msg)


def is_group_flag(key: KeyPath) -> bool:
    """Whether a leaf says that a nested group has ended."""
    return len(key) >= 3 and key[0] == keys.NEXT and key[-1] in keys.DONE_KEYS


def flat_reward(batch: TensorDictBase, key: NestedKey) -> Tensor:
    """Return one reward, ``[N, ...]``."""
    reward = required("multi_step", batch, next_key(key))
    if not reward.is_floating_point():
        msg = f"{next_key(key)!r}: expected floating-point rewards, got {reward.dtype}. Cast them."
        raise TypeError(msg)
    # [*B, T, ...] -> [N, ...]
    return reward.reshape(-1, *reward.shape[batch.ndim :])


def warn_of_ended_calls(extended: TensorDictBase, n_steps: int) -> bool:
    """Warn of rows without ids whose span ends with their call; return whether there are any."""
    steps = extended[keys.STEPS_TO_NEXT_OBS]
    is_short = steps < n_steps
    if not is_short.any():
        return False
    # a done row ends its trajectory: fewer steps are right there
    is_short &= ~_done(extended, steps)
    short = int(is_short.sum())
    if not short:
        return False
    warnings.warn(
        f"MultiStepTransform: {short} of {is_short.numel()} rows of a call reach less than "
        f"{n_steps} steps ahead, and no marker ends them: the rows lack ('collector', 'traj_ids') "
        "or ('collector', 'traj_step'), and no other row's observation is, bit for bit, what they "
        "say comes next. Store ids and steps, also where one row comes a call, or take slices and "
        "MultiStep on samples.",
        UserWarning,
        stacklevel=3,
    )
    return True


def warn_of_single_rows(batch: TensorDictBase, extended: TensorDictBase, n_steps: int) -> bool:
    """Warn of a sample of single rows, most of which lack their successors."""
    names = batch.keys()
    if n_steps < 2 or keys.INDEX not in names or batch.get(keys.SLICE_IDS, None) is not None:
        return False
    steps = extended[keys.STEPS_TO_NEXT_OBS]
    # flags of single steps: those of the n-step rows are set up to n - 1 rows early
    is_open = ~_done(batch, steps)
    alone = int((is_open & (steps == 1)).sum())
    count = int(is_open.sum())
    # the ends of slices reach 1 step too: only a majority is a sample of single rows
    if 2 * alone <= count:
        return False
    warnings.warn(
        f"MultiStep: {alone} of {count} rows that are not done reach 1 step ahead instead of "
        f"{n_steps}: the rows that follow them are not in the sample, as it is drawn row by row. "
        "Store n-step rows with MultiStepTransform, or sample slices with SliceSampler.",
        UserWarning,
        stacklevel=3,
    )
    return True


def _done(rows: TensorDictBase, steps: Tensor) -> Tensor:
    """Rows that are done by any of their flags: bool ``[*B, T, 1]``."""
    flags = torch.zeros_like(steps, dtype=torch.bool)
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED):
        done = rows.get(key, None)
        if done is not None:
            flags = flags | done
    return flags
