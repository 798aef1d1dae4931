"""Arrays that an environment refills, which a step and the next one both show."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_layout import keys
from rl_tensordict.arguments import stack_level

_LOOKS = 16  # more calls than the last steps of short episodes, and too few to take time


class RefilledArrays:
    """Looks at the first dicts for observations that are one array at the root and under next."""

    def __init__(self) -> None:
        self.left = _LOOKS
        self._seen: dict[str, int] = {}

    def see(self, data: Mapping[str, Any]) -> None:
        """Look at the dict of one call; after the last of them, warn where most calls show it."""
        self.left -= 1
        following = data.get(keys.NEXT)
        for name, after in following.items() if isinstance(following, Mapping) else ():
            if _is_one(data.get(name), after):
                self._seen[name] = self._seen.get(name, 0) + 1
        often = sorted(name for name, count in self._seen.items() if 2 * count > _LOOKS)
        if often and not self.left:
            message = (
                f"{often} and what stands under 'next' are one array in most of the first {_LOOKS} "
                "calls, so that a step and the next one show the same. Does the environment refill "
                "its array (self.state += 1, or copy=False of a vector)? Let it return a copy, or "
                "store observation.copy(). One that shows the same again is right."
            )
            warnings.warn(message, UserWarning, stacklevel=stack_level())


def _is_one(before: Any, after: Any) -> bool:
    """Whether two arrays or tensors are the same memory."""
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        same = before.__array_interface__["data"][0] == after.__array_interface__["data"][0]
        return same and before.shape == after.shape and before.size > 0
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        same = before.data_ptr() == after.data_ptr()
        return same and before.shape == after.shape and before.numel() > 0
    return False
