"""How far values are from their targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from rl_tensordict.arguments import check_choice
from rl_value.masked_means import Reduction, reduce

DISTANCES = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}


def distance(value: Tensor, target: Tensor, kind: str) -> Tensor:
    """Compute the distance of each value from its target."""
    # "l1" |d|; "l2" d²; "smooth_l1" d² / 2 below 1, and |d| - 1/2 from there.
    _check(value, target, kind)
    return DISTANCES[kind](value, target, reduction="none")


def reduced_distance(
    value: Tensor, target: Tensor, kind: str, counted: Tensor | None, reduction: Reduction
) -> Tensor:
    """Reduce the distances of values from their targets, in one step where every step counts."""
    if counted is not None:
        return reduce(distance(value, target, kind), counted, reduction)
    _check(value, target, kind)
    return DISTANCES[kind](value, target, reduction=reduction)


def _check(value: Tensor, target: Tensor, kind: str) -> None:
    if kind not in DISTANCES:
        check_choice("loss", kind, [*DISTANCES])
    if value.shape != target.shape:
        msg = (
            f"expected values and targets of one shape: got {list(value.shape)} and "
            f"{list(target.shape)}. Both end in a dimension of size 1."
        )
        raise ValueError(msg)
