"""The weights that workers act with: published on request, or after so many batches."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl_collect.weights.load import has_weights, load_weights
from rl_collect.weights.shared_weights import SharedWeights
from rl_collect.weights.unpublished import UnpublishedWeights


class WorkerWeights:
    """The weights in shared memory, and after how many batches a version of them is due."""

    def __init__(self, policy: Any, shared: SharedWeights | None, interval: int) -> None:
        self.shared = shared
        self._policy, self._interval = policy, interval
        self._unpublished = UnpublishedWeights(policy)
        self._batches = 0  # since the last version
        self._last_version: int | None = None  # once the memory is gone

    @classmethod
    def like(cls, weights: Any, policy: Any, interval: int) -> WorkerWeights:
        """Make the first version; nothing is shared if there are no weights.

        The policy here is None if the workers have made theirs.
        """
        shared = SharedWeights.like(weights) if has_weights(weights) else None
        return cls(policy, shared, interval)

    @property
    def version(self) -> int:
        """The newest version; 0 if there are no weights."""
        if self._last_version is not None:
            return self._last_version
        return 0 if self.shared is None else self.shared.newest

    def count_batch(self) -> None:
        """Publish before a batch where that is due, and count it."""
        if self.shared is not None and 0 < self._interval <= self._batches:
            self.publish(None)
        self._batches += 1
        self._unpublished.count_batch()

    def publish(self, policy_or_weights: Any) -> None:
        """Make the next version: of what is given, or of the policy here where None."""
        if self.shared is None:
            raise TypeError(_without_weights(self._policy))
        given = self._policy if policy_or_weights is None else policy_or_weights
        if given is None:
            msg = (
                "policy_factory made the policies in the workers, and there is none here whose "
                "weights could be taken: pass the policy, or its state_dict(), to "
                "update_policy_weights_()."
            )
            raise TypeError(msg)
        self.shared.publish(given)
        self._unpublished.note_published()
        self._batches = 0

    def restored(self, weights: Any, version: int) -> WorkerWeights:
        """Saved weights as the newest version, in the policy here too; close this one then."""
        if isinstance(self._policy, nn.Module):
            load_weights(self._policy, weights)
        shared = SharedWeights.like(weights, version)
        return WorkerWeights(self._policy, shared, self._interval)

    def close(self) -> None:
        """Let go of the memory."""
        if self.shared is not None:
            self._last_version = self.version
            self.shared.close()


def _without_weights(policy: Any) -> str:
    if policy is not None:
        return f"a {type(policy).__name__} has no weights that could be replaced."
    return (
        "the workers' policies have no weights that could be replaced: actions are drawn at "
        "random, or policy_factory makes something that holds no tensors."
    )
