"""A causal model of a few weights, for examples and tests without transformers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Output(NamedTuple):
    """What a model returns.

    Attributes:
        logits: float ``[B, L, V]``.
    """

    logits: Tensor


class TinyModel(nn.Module):
    """Predicts the next token from the last one and the mean of all so far.

    Args:
        vocab_size: V.
        hidden: numbers of an embedding.

    Example:
        >>> TinyModel(vocab_size=9)(torch.tensor([[1, 2]])).logits.shape
        torch.Size([1, 2, 9])
    """

    def __init__(self, vocab_size: int, hidden: int = 8) -> None:
        super().__init__()
        self.last, self.past = nn.Embedding(vocab_size, hidden), nn.Embedding(vocab_size, hidden)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Output:
        """Compute the logits of every place.

        Args:
            input_ids: int64 ``[B, L]``.
            attention_mask: 1 for real tokens, ``[B, L]``.

        Returns:
            Their logits.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        real = mask.unsqueeze(-1).to(self.head.weight.dtype)
        past = (self.past(input_ids) * real).cumsum(1) / real.cumsum(1).clamp(min=1)
        return Output(self.head(torch.tanh(self.last(input_ids) + past)))
