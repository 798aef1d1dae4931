"""The one place that touches a private constructor of tensordict."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict

Entries = dict[str, torch.Tensor | TensorDict]


def checked(entries: Entries, batch_size: torch.Size) -> TensorDict:
    """What `finished` does, by the public constructor: 5 us where the private one takes 1.

    Example:
        >>> checked({"reward": torch.zeros(5, 1)}, torch.Size([5])).batch_size
        torch.Size([5])
    """
    return TensorDict(entries, batch_size=batch_size)


finished: Callable[[Entries, torch.Size], TensorDict] = getattr(TensorDict, "_new_unsafe", checked)
"""A TensorDict of entries known to fit `batch_size`, not checked again.

A bare name for the private constructor, because a sample makes several and a wrapper would be a
sixth of the cost. `checked` takes its place should a later tensordict drop it.
"""
