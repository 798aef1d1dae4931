"""The check of scores that a choice is made by."""

from __future__ import annotations

from math import isnan

import torch
from torch import Tensor


def refuse_nan(scores: Tensor, mask: Tensor | None = None) -> None:
    """Raise for NaN among scores ``[*B, n]`` on the CPU; elsewhere a look would wait."""
    if not can_look(scores):
        return
    # a sum is NaN where an entry is, and one number is all that is read
    if isnan((scores if scores.numel() == 1 else scores.sum()).item()):
        wrong = scores.isnan().any(-1)
        if mask is not None:  # a row without an allowed action is never acted on
            wrong = wrong & mask.any(-1)
        count = int(wrong.sum())
        if count:
            msg = (
                f"cannot draw from these logits: some are nan, in {count} of {wrong.numel()} rows. "
                "Look at the weights of the policy, and at what it was given."
            )
            raise RuntimeError(msg)


def can_look(values: Tensor) -> bool:
    """Whether a number may be read: on the CPU, and neither compiled nor under `torch.func`."""
    if not values.is_cpu or torch.compiler.is_compiling():
        return False
    return not torch._C._are_functorch_transforms_active()
