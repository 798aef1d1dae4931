"""What a binding of transforms depends on."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from rl_tensordict.torch_internals import version_of
from rl_transforms import Transform

INTERNALS = vars(nn.Module()).keys() - {"_parameters", "_buffers"}


class TransformSnapshot:
    """What a binding of transforms depends on: their attributes, with the versions of tensors."""

    # objects are compared by identity; containers are looked into, since they may change in place

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self.held: list[Any] = []
        self.versions: list[int] = []
        left: list[Any] = []
        for one in transforms:
            self.held.append(one)
            left += [value for name, value in vars(one).items() if name not in INTERNALS]
        for value in left:  # which grows meanwhile
            if isinstance(value, dict):
                left += [*value, *value.values()]
            elif isinstance(value, list | tuple):
                left += value
            else:
                self.held.append(value)
                if isinstance(value, Tensor):
                    self.versions.append(version_of(value))

    def agree(self, other: TransformSnapshot) -> bool:
        """Whether nothing has changed in between."""
        is_alike = self.versions == other.versions and len(self.held) == len(other.held)
        return is_alike and all(map(operator.is_, self.held, other.held))
