"""What a distribution remembers of the values it has drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Drawn:
    """A drawn value, and where it came from.

    Args:
        value: what was drawn.
        origin: what its log-probability is computed from.

    Example:
        >>> value = torch.zeros(2)
        >>> drawn = Drawn(value, "origin")
        >>> drawn.holds(value), drawn.holds(value.clone())
        (True, False)
        >>> _ = value.add_(1)
        >>> drawn.holds(value)
        False
    """

    __slots__ = ("origin", "value", "version")

    def __init__(self, value: Tensor, origin: Any) -> None:
        self.value = value
        self.origin = origin
        # compiled code cannot compare versions
        self.version = None if torch.compiler.is_compiling() else value._version

    def holds(self, value: Tensor) -> bool:
        """Tell whether a value is the drawn one, and nothing was written to it since.

        Args:
            value: any tensor.

        Returns:
            False for a copy, too.
        """
        if value is not self.value:
            return False
        return self.version is None or value._version == self.version
