"""The generators that actions are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def generators() -> list[Tensor]:
    """Save torch's global generators: of the CPU, and of CUDA if initialised."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def set_generators(states: Sequence[Tensor]) -> None:
    """Go back to saved states."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))
