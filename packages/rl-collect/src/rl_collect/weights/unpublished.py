"""Weights that change here and are never handed to the workers that act with them."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from rl_tensordict.torch_internals import version_of

PATIENCE = 20
"""So many batches may come with the first weights, after these changed here."""


class UnpublishedWeights:
    """Counts the batches since the policy here changed; warns once where nothing was published."""

    def __init__(self, policy: Any) -> None:
        self._policy, self._batches = policy, 0
        self._first = _changes(policy)
        self._waits = self._first is not None

    def note_published(self) -> None:
        """From now on it is the caller's choice when to publish."""
        self._waits = False

    def count_batch(self) -> None:
        """Count a batch, and warn where too many came."""
        if not self._waits or _changes(self._policy) == self._first:
            return
        self._batches += 1
        if self._batches < PATIENCE:
            return
        self._waits = False
        warnings.warn(
            f"the weights of the policy here have changed, and {PATIENCE} batches later they were "
            "not handed to the workers, who still act with the first ones: call "
            "update_policy_weights_() after each update, or every few.",
            UserWarning,
            stacklevel=5,
        )


def _changes(policy: Any) -> int | None:
    """How often weights were written to; None if workers see that, or there are none."""
    weights = list(policy.parameters()) if isinstance(policy, nn.Module) else []
    if not weights or any(one.is_inference() or one.is_shared() for one in weights):
        return None
    return sum(map(version_of, weights))
