"""Dropping groups without entries."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Composite
from rl_tensordict import NestedKey, as_tuple
from rl_transforms.entries import without_entries
from rl_transforms.transform import Transform, without_specs


class RemoveEmptySpecs(Transform):
    """Drops groups that hold no entry, from data and from specs.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"agents": {"memory": {}}, "observation": torch.zeros(3, 1)}, [3])
        >>> list(RemoveEmptySpecs()(batch).keys())
        ['observation']
    """

    online = False

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Drop empty groups of sampled or rolled-out rows."""
        return without_entries(batch, empty) if (empty := _empty_groups(batch)) else batch

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Drop empty groups of what a reset returned."""
        return self.forward(root)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Drop empty groups of what a step returned."""
        return self.forward(after)

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Describe observations without empty groups."""
        return _without_empty(spec)

    def transform_state_spec(self, spec: Composite) -> Composite:
        """Describe the state without empty groups."""
        return _without_empty(spec)


def _without_empty(spec: Composite) -> Composite:
    return without_specs(spec, empty) if (empty := _empty_groups(spec)) else spec


def _empty_groups(tree: TensorDictBase | Composite) -> list[NestedKey]:
    """Outermost groups of a tree without a leaf below them."""
    found: list[NestedKey] = []
    for name, entry in tree.items():
        if not isinstance(entry, TensorDictBase | Composite):
            continue
        if not list(entry.keys(True, True)):
            found.append(name)
        else:
            found += [as_tuple(name) + as_tuple(key) for key in _empty_groups(entry)]
    return found
