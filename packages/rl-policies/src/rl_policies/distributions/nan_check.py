"""Checks of what an action is drawn by: scores of choices, and densities."""

from __future__ import annotations

from math import isnan

import torch
from torch import Tensor

from rl_layout import recurrent_mode
from rl_tensordict.torch_internals import has_dispatch_modes, has_transforms


def refuse_nan(scores: Tensor, mask: Tensor | None = None) -> None:
    """Raise for NaN among scores ``[*B, n]`` on the CPU; elsewhere a look would wait."""
    # a sum is NaN where an entry is, and one number is all that is read
    if not can_read(scores) or not isnan((scores if scores.numel() == 1 else scores.sum()).item()):
        return
    if not can_look(scores):
        return
    wrong = scores.isnan().any(-1)
    if mask is not None:  # a row without an allowed action is never acted on
        wrong = wrong & mask.any(-1)
    count = int(wrong.sum())
    if count:
        msg = (
            f"cannot draw from these logits: some are nan, in {count} of {wrong.numel()} rows. "
            "Look at the weights of the policy, and at its inputs."
        )
        raise RuntimeError(msg)


def refuse_nan_density(log_density: Tensor) -> None:
    """Raise for NaN among log-densities ``[*B]`` of what was drawn, on the CPU."""
    if not can_read(log_density):
        return
    total = log_density if log_density.numel() == 1 else log_density.sum()
    if not isnan(total.item()) or not can_look(log_density):
        return
    count = int(log_density.isnan().sum())
    if count:  # infinities of both signs add up to NaN too
        msg = (
            f"cannot draw with these parameters: the log-probability is nan in {count} of "
            f"{log_density.numel()} rows, as where a scale is negative or loc is nan. Let the "
            "network end in exp or softplus for the scale, and look at its weights."
        )
        raise RuntimeError(msg)


def refuse_nan_actions(actions: Tensor) -> None:
    """Raise for NaN among actions ``[*B, ...]`` that were drawn or chosen, on the CPU."""
    if not actions.is_floating_point() or not can_read(actions):
        return
    if not isnan(actions.sum().item()) or not can_look(actions):
        return
    count = int(actions.isnan().sum())
    if count:
        msg = (
            f"cannot draw with these parameters: {count} of {actions.numel()} numbers of the "
            "action are nan. Look at the weights of the network, and at its inputs."
        )
        raise RuntimeError(msg)


def can_look(values: Tensor) -> bool:
    """Whether a number may be read: on the CPU, neither traced nor in a batch to learn from."""
    # losses leave out rows that hold no action
    return recurrent_mode() is not True and can_read(values)


def can_read(values: Tensor) -> bool:
    """Whether there is a number to read: on the CPU, not traced."""
    if not values.is_cpu or torch.compiler.is_compiling():
        return False
    # tracers and fake tensors are dispatch modes: they have no number to read
    return not (has_dispatch_modes() or has_transforms())
