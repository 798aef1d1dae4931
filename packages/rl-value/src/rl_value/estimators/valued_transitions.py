"""Transitions with values, and the treatment of results that all estimators share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_value.estimators.bootstrapping.next_values import UnrolledValues
from rl_value.estimators.transitions import Transitions


@dataclass(frozen=True)
class ValuedTransitions:
    """The steps of a batch with their values, as returns are computed from."""

    steps: Transitions  # the M steps
    reward: Tensor  # [M, *G, C]
    value: Tensor  # [M, *G, C]
    next_value: Tensor  # [M, *G, C]
    cut: Tensor  # bool [M, *G, 1], steps after which nothing flows
    left_out: Tensor | None  # bool [M, *G, 1], steps that have no target; None where all have
    gamma: float | Tensor  # discount, a number or one per step
    found: UnrolledValues  # what the network said


def finished(valued: ValuedTransitions, advantage: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Give steps that have no target the advantage 0, and their own value as target."""
    if valued.left_out is not None:
        advantage = torch.where(valued.left_out, 0, advantage)
        target = torch.where(valued.left_out, valued.value, target)
    if (
        valued.found.in_budget is not None
    ):  # outside of the budget of shifted even values are unknown
        target = torch.where(valued.steps.widen(valued.found.in_budget), target, 0)
    return advantage, target


def standardised(values: Tensor, left_out: Tensor | None) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1, over the steps that count."""
    # deviations below 1e-4 count as 1e-4; one step alone has the correction 0, not a NaN
    if left_out is None:
        deviation, mean = torch.std_mean(values, correction=min(1, values.numel() - 1))
        return (values - mean) / deviation.clamp(min=1e-4)
    counted = (~left_out).expand(values.shape)
    number = counted.sum()
    mean = values.masked_fill(~counted, 0).sum() / number.clamp(min=1)
    square = (values - mean).square().masked_fill(~counted, 0).sum()
    deviation = (square / (number - 1).clamp(min=1)).sqrt().clamp(min=1e-4)
    return ((values - mean) / deviation).masked_fill(~counted, 0)
