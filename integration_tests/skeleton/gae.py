"""Generalised advantage estimation, one trajectory at a time."""

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from skeleton.segments import flag, segment_ends


def gae(
    rows: TensorDictBase, value: Tensor, next_value: Tensor, gamma: float, lmbda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of flat rows, each [N, 1] like the values before and after.

    δᵢ = rᵢ + γ V'ᵢ - Vᵢ, with V'ᵢ = 0 where the row is terminated, and
    Aᵢ = δᵢ + γ λ Aᵢ₊₁, with Aᵢ₊₁ = 0 where the segment ends. The target is Aᵢ + Vᵢ.
    A row whose next observation is missing has no δ: its A is 0, and none is carried from it.
    (Schulman et al., arXiv:1506.02438.)
    """
    terminated = rows[keys.NEXT_TERMINATED][:, 0]
    missing = flag(rows, keys.NEXT_MISSING, False)
    ends = segment_ends(rows)
    advantage = torch.zeros(len(ends) + 1, 1)
    for i in reversed(range(len(ends))):
        after = 0 if terminated[i] else next_value[i]
        delta = rows[keys.NEXT_REWARD][i] + gamma * after - value[i]
        carried = 0 if ends[i] else advantage[i + 1]
        advantage[i] = 0 if missing[i] else delta + gamma * lmbda * carried
    return advantage[:-1], advantage[:-1] + value
