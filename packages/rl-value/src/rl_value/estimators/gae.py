"""The estimator of generalised advantages."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict.arguments import check_flags
from rl_value.arguments import FLOATS, check_fraction, check_steps, zeroed
from rl_value.estimators.estimator import ValueEstimator
from rl_value.estimators.td import N_STEPS, mixing_factor, over_jumps
from rl_value.estimators.transitions import Transitions, ValuedTransitions, finished, standardised
from rl_value.returns import explain_scan, general_gae
from rl_value.scan.block_scan import gae_of_rows, obstacle


class GAE(ValueEstimator):
    """Estimates generalised advantages; the target is the advantage + V(s).

    δₜ = rₜ + γ V(s'ₜ) - V(sₜ), Aₜ = δₜ + γ λ Aₜ₊₁, cut where segments end. On rows of m steps γ
    is γᵐ, and the advantage that is carried is that of the row m steps on.
    (Schulman et al., arXiv:1506.02438.)

    Args:
        gamma: discount in [0, 1].
        lmbda: 0 for one step, 1 for the whole trajectory.
        value_network: writes the values; None reads stored ones.
        average_gae: standardise the advantages of the steps that count.
        settings: what `ValueEstimator` takes besides.

    Raises:
        ValueError: a factor is outside [0, 1].

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> batch = GAE(gamma=0.5, lmbda=0.5, value_network=net)(trajectories([3, 1]))
        >>> batch["advantage"].flatten().tolist()
        [2.0625, 2.25, 1.0, 1.0]
    """

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        value_network: TensorDictModuleBase | None = None,
        average_gae: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **settings)
        check_fraction("lmbda", lmbda)
        check_flags(average_gae=average_gae)
        self.lmbda = lmbda
        self.average_gae = average_gae

    def explain_scan(self, steps: Transitions) -> str:
        """Say which scan computes the advantages of steps, and why."""
        if steps.ahead is not None:
            return N_STEPS
        factors = steps.per_step(self.gamma), steps.factor("lmbda", self.lmbda)
        return explain_scan(factors, steps.reward, has_loops=True)

    def estimate(self, valued: ValuedTransitions) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets of steps, ``[M, *G, C]`` each."""
        arrays = valued.reward, valued.value, valued.next_value
        for each in arrays:
            if (
                each.shape != valued.reward.shape
                or each.dtype not in FLOATS
                or each.layout is not torch.strided
            ):
                check_steps(valued.reward, value=valued.value, next_value=valued.next_value)
        if valued.steps.ahead is None:
            factors = valued.gamma, valued.steps.factor("lmbda", self.lmbda)
            ends = valued.steps.terminated, valued.cut
            scan = general_gae if obstacle(factors, *arrays) else gae_of_rows
            advantage, target = scan(arrays, ends, factors, 0)
        else:
            # where next values are another network's, this is no λ-return less the value
            ahead = zeroed(valued.next_value, valued.steps.terminated)
            delta = valued.reward + valued.gamma * ahead - valued.value
            advantage = over_jumps(valued, mixing_factor(valued, self.lmbda), delta)
            target = advantage + valued.value
        advantage, target = finished(valued, advantage, target)
        if self.average_gae:
            advantage = standardised(advantage, valued.left_out)
        return advantage, target
