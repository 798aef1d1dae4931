"""Leaves that finished steps hold, and that an environment must not write to."""

from __future__ import annotations

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.env.spec_leaves import SpecLeaves
from rl_layout import keys
from rl_tensordict import find
from rl_tensordict.torch_internals import version_of


class HeldLeaves:
    """The leaves of a root, and of what a step has returned, with how often each was written to."""

    def __init__(self, *parts: tuple[TensorDictBase | None, SpecLeaves]) -> None:
        # the same tensors are in the steps of a rollout: a write would change the past
        found = [
            (key, find(tensordict, key))
            for tensordict, leaves in parts
            if type(tensordict) is TensorDict  # leaves of a lazy stack are made when they are read
            for key, _ in leaves
        ]
        self._held = [
            (key, leaf, version_of(leaf))
            for key, leaf in found
            if isinstance(leaf, Tensor) and not leaf.is_inference()
        ]

    def check(self, name: str) -> None:
        """Raise if the method of this name has changed one in place."""
        for key, leaf, version in self._held:
            if version_of(leaf) != version:
                msg = (
                    f"{name} changed {keys.as_key(key)!r} in place, which the step before has "
                    f"returned: its rows would all hold the last value. Make a new tensor "
                    f"(self.x = self.x + 1, not +=), or return self.x.clone()."
                )
                raise RuntimeError(msg)
