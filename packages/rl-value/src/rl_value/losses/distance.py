"""How far values are from their targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

DISTANCES = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}


def distance(value: Tensor, target: Tensor, kind: str) -> Tensor:
    """Compute the distance of each value from its target.

    ``"l1"`` |d|; ``"l2"`` d²; ``"smooth_l1"`` d² / 2 below 1, and |d| - 1/2 from there.

    Args:
        value: ``[...]``.
        target: the same shape.
        kind: one of the three.

    Returns:
        ``[...]``.

    Raises:
        ValueError: the shapes differ, or there is no such kind.

    Example:
        >>> import torch
        >>> distance(torch.tensor([3.0, 0.5]), torch.zeros(2), "smooth_l1")
        tensor([2.5000, 0.1250])
    """
    if kind not in DISTANCES:
        msg = f"loss: expected one of {', '.join(DISTANCES)}, got {kind!r}."
        raise ValueError(msg)
    if value.shape != target.shape:
        msg = (
            f"expected values and targets of one shape: got {list(value.shape)} and "
            f"{list(target.shape)}. Both end in a dimension of size 1."
        )
        raise ValueError(msg)
    made: Tensor = DISTANCES[kind](value, target, reduction="none")
    return made
