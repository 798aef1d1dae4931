"""Dropping some entries."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rl_layout.keys import next_key
from rl_specs import Composite
from rl_tensordict import NestedKey, as_key, as_tuple
from rl_transforms.entries import without_entries
from rl_transforms.transform import Transform, spec_of, without_specs


class ExcludeTransform(Transform):
    """Drops some entries, at the root and under ``"next"``.

    Args:
        *excluded_keys: leaves or groups to drop; missing ones are skipped.
        inverse: drop them from data going in instead.

    Raises:
        TypeError: a key is neither a string nor a tuple of strings.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = ExcludeTransform("observation")(trajectories([3]))
        >>> "observation" in batch, "observation" in batch["next"]
        (False, False)
    """

    def __init__(self, *excluded_keys: NestedKey, inverse: bool = False) -> None:
        named = [as_key(as_tuple(key)) for key in excluded_keys]
        super().__init__(*((None, None, named) if inverse else (named,)))
        self.inverse = inverse
        self.side = "write" if inverse else "read"
        self._both = [place for key in named for place in (key, next_key(key))]

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Drop entries of sampled or rolled-out rows."""
        return batch if self.inverse else without_entries(batch, self._both)

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Drop entries of data going in, where that was asked for."""
        return without_entries(batch, self._both) if self.inverse else batch

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Drop entries of what a reset returned."""
        return without_entries(root, self.in_keys)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Drop entries of what a step returned."""
        return without_entries(after, self.in_keys)

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Describe the observations that are left.

        Raises:
            KeyError: there is no such observation.
        """
        for key in self.in_keys:
            spec_of("ExcludeTransform", spec, key, "observation")
        return without_specs(spec, self.in_keys) if self.in_keys else spec

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Raise for an attempt to drop a reward."""
        return self._unharmed(spec, "reward")

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Raise for an attempt to drop a done flag."""
        return self._unharmed(spec, "done flag")

    def _unharmed(self, spec: Composite, what: str) -> Composite:
        for key in self.in_keys:
            if key in spec:
                msg = f"an environment needs its {what} {key!r}: exclude it in the buffer instead."
                raise ValueError(msg)
        return spec
