"""What a distribution remembers of the values it has drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SampleCache:
    """A drawn value, and where it came from."""

    __slots__ = ("origin", "value", "version")

    def __init__(self, value: Tensor, origin: Any) -> None:
        self.value = value
        self.origin = origin
        # compiled code cannot compare versions
        self.version = None if torch.compiler.is_compiling() else value._version

    def holds(self, value: Tensor) -> bool:
        """Tell whether a value is the drawn one, and nothing was written to it since."""
        if value is not self.value:
            return False
        return self.version is None or value._version == self.version
