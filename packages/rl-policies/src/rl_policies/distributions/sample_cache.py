"""The last sample of a distribution, with the intermediate values of its log-probability."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_tensordict.torch_internals import version_of


class SampleCache:
    """A sample, and the values that its log-probability is computed from."""

    __slots__ = ("origin", "value", "version")

    def __init__(self, value: Tensor, origin: Any) -> None:
        self.value = value
        self.origin = origin
        # compiled code cannot compare versions: identity alone decides there
        self.version = None if torch.compiler.is_compiling() else version_of(value)

    def holds(self, value: Tensor) -> bool:
        """Tell whether a value is the sample itself, not a copy, and unchanged since."""
        if value is not self.value:
            return False
        return self.version is None or version_of(value) == self.version
