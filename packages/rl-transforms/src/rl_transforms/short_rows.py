"""Warnings of n-step rows that span fewer than n steps although no marker ends them."""

from __future__ import annotations

import warnings

import torch
from tensordict import TensorDictBase

from rl_layout import keys


def warn_of_ended_calls(extended: TensorDictBase, n_steps: int) -> bool:
    """Warn of rows without ids whose span ends with their call; return whether there are any."""
    steps = extended[keys.STEPS_TO_NEXT_OBS]
    # a done row ends its trajectory: fewer steps are right there
    is_short = (steps < n_steps) & ~_done(extended, steps)
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


def _done(rows: TensorDictBase, steps: torch.Tensor) -> torch.Tensor:
    """Rows that are done by any of their flags: bool ``[*B, T, 1]``."""
    flags = torch.zeros_like(steps, dtype=torch.bool)
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED):
        done = rows.get(key, None)
        if done is not None:
            flags = flags | done
    return flags
