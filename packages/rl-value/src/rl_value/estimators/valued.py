"""Steps with their values, and what every estimator does with its results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_value.estimators.bootstrapping.next_values import Unrolled
from rl_value.estimators.transitions import Steps


@dataclass(frozen=True)
class Valued:
    """The steps of a batch with their values, as returns are computed from.

    Attributes:
        steps: the M steps.
        reward: ``[M, *G, C]``.
        value: ``[M, *G, C]``.
        next_value: ``[M, *G, C]``.
        cut: bool ``[M, *G, 1]``, steps behind which nothing flows.
        left_out: bool ``[M, *G, 1]``, steps that have no target; None where all have.
        gamma: discount, a number or one per step.
        found: what the network said.
    """

    steps: Steps
    reward: Tensor
    value: Tensor
    next_value: Tensor
    cut: Tensor
    left_out: Tensor | None
    gamma: float | Tensor
    found: Unrolled


def finished(valued: Valued, advantage: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Give steps that have no target the advantage 0, and their own value as target.

    Args:
        valued: the steps.
        advantage: ``[M, *G, C]``.
        target: ``[M, *G, C]``.

    Returns:
        Both; steps outside the budget of ``shifted`` get the target 0.
    """
    if valued.left_out is not None:
        advantage = torch.where(valued.left_out, 0, advantage)
        target = torch.where(valued.left_out, valued.value, target)
    if valued.found.fits is not None:
        target = torch.where(valued.steps.widen(valued.found.fits), target, 0)
    return advantage, target


def standardised(values: Tensor, left_out: Tensor | None) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1, over the steps that count.

    Args:
        values: ``[M, ...]``.
        left_out: bool ``[M, *G, 1]``, steps that do not count and get 0; None where all do.

    Returns:
        ``[M, ...]``; deviations below 1e-4 count as 1e-4.

    Example:
        >>> standardised(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[0], [0], [1]]).bool())
        tensor([[-0.7071],
                [ 0.7071],
                [ 0.0000]])
    """
    if left_out is None:
        deviation, mean = torch.std_mean(values, correction=min(1, values.numel() - 1))
        return (values - mean) / deviation.clamp(min=1e-4)
    counted = (~left_out).expand(values.shape)
    number = counted.sum()
    mean = values.masked_fill(~counted, 0).sum() / number.clamp(min=1)
    square = (values - mean).square().masked_fill(~counted, 0).sum()
    deviation = (square / (number - 1).clamp(min=1)).sqrt().clamp(min=1e-4)
    return ((values - mean) / deviation).masked_fill(~counted, 0)
