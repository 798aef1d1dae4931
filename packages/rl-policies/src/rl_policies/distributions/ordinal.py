"""Categorical distributions over ordered choices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import logsigmoid

from rl_policies.distributions.nan_check import refuse_nan
from rl_policies.distributions.one_hot import OneHotCategorical
from rl_tensordict import note_errors


def ordinal_logits(scores: Tensor) -> Tensor:
    """Turn scores of n thresholds `[*B, n]` into logits `[*B, n]` of ordered choices."""
    # Tang and Agrawal, arXiv:1901.10500, section 4:
    # lₖ = Σ_{i ≤ k} log σ(sᵢ) + Σ_{i > k} log (1 - σ(sᵢ))
    passed, failed = logsigmoid(scores), logsigmoid(-scores)
    # sums over i > k: the total less the sums up to k
    above = failed.sum(-1, keepdim=True) - failed.cumsum(-1)
    return passed.cumsum(-1) + above


class Ordinal(Categorical):
    """Numbers of choices with an order, from the scores of their thresholds.

    Args:
        scores: floats `[*B, n]`; see `ordinal_logits`.

    Example:
        >>> dist = Ordinal(torch.tensor([4.0, 4.0, -4.0]))
        >>> int(dist.mode), dist.probs.argsort(descending=True).tolist()
        (1, [1, 2, 0])
    """

    @note_errors
    def __init__(self, scores: Tensor) -> None:
        super().__init__(logits=ordinal_logits(scores), validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The likeliest choice, int64 `[*B]`."""
        refuse_nan(self.logits)
        return self.logits.argmax(-1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode: the likeliest choice, int64 `[*B]`."""
        return self.mode


class OneHotOrdinal(OneHotCategorical):
    """One-hot vectors of choices with an order, from the scores of their thresholds.

    Args:
        scores: floats `[*B, n]`; see `ordinal_logits`.
        dtype: dtype of the samples; that of the spec of the action.

    Example:
        >>> OneHotOrdinal(torch.tensor([4.0, 4.0, -4.0])).mode
        tensor([0, 1, 0])
    """

    @note_errors
    def __init__(self, scores: Tensor, dtype: torch.dtype = torch.int64) -> None:
        super().__init__(ordinal_logits(scores), dtype=dtype)
