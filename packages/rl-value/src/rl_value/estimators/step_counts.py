"""How many steps the next observation of each row is away."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout.internals import flat_marker
from rl_tensordict import NestedKey
from rl_tensordict.types import KeyPath

# a pair of a segment and a number of steps is numbered within 64 bits
MOST_STEPS = 2**31 - 1


def step_counts(ahead: Tensor, shape: torch.Size, key: KeyPath) -> Tensor:
    """The distance to each next observation, int64 ``[*B, T]``, of an entry of a batch."""
    return flat_marker(ahead, shape, key, torch.int64, singleton=True).view(shape)


def check_steps(ahead: Tensor, key: NestedKey) -> None:
    """Raise where the number of steps of a real row, int64 ``[M]``, is none."""
    if not len(ahead):
        return
    least, most = torch.stack(ahead.aminmax()).tolist()  # a GPU is waited for once
    if least < 1:
        msg = f"{key!r}: expected 1 or more steps, got {least}."
        raise ValueError(msg)
    if most > MOST_STEPS:
        msg = (
            f"{key!r}: expected at most {MOST_STEPS:,} steps, got {most:,}: no trajectory is as "
            "long. Store the steps up to each row's next observation."
        )
        raise ValueError(msg)
