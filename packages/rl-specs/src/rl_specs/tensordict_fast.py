"""The one place that touches a private constructor of tensordict, with the public one behind it."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

_unchecked: Any = getattr(TensorDict, "_new_unsafe", None)


def new_tensordict(
    source: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None = None,
    names: list[str | None] | None = None,
) -> TensorDict:
    """Make a tensordict of entries that are known to be valid, without checking them again.

    The checks cost more than drawing the entries. A spec has no need of them: its entries have
    the right shape and device by construction.

    Args:
        source: entries, by name; nested ones are tensordicts already.
        batch_size: sizes that every entry begins with.
        device: device of every entry, or None.
        names: names of the batch dimensions, or None.

    Returns:
        A tensordict that holds the entries themselves.

    Example:
        >>> new_tensordict({"reward": torch.zeros(3, 1)}, torch.Size((3,))).batch_size
        torch.Size([3])
    """
    make = _unchecked or TensorDict
    out: TensorDict = make(source, batch_size=batch_size, device=device, names=names)
    return out
