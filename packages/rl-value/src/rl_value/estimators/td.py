"""Estimators of bootstrapped returns."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_value.arguments import check_fraction, check_steps, zeroed
from rl_value.estimators.estimator import ValueEstimator
from rl_value.estimators.transitions import Transitions, ValuedTransitions, finished
from rl_value.returns import explain_scan, td0, td_lambda
from rl_value.scan.doubling_scan import jumping_scan

N_STEPS = "torch, from successor to successor: rows of n steps"


class TD0Estimator(ValueEstimator):
    """Estimates by one step: the target is r + γ V(s'), the advantage target - V(s).

    Args:
        gamma: discount in [0, 1]; on n-step rows γ ** steps counts.
        value_network: writes the values; None reads stored ones.
        settings: what `ValueEstimator` takes besides.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> batch = TD0Estimator(gamma=0.5, value_network=net)(trajectories([3]))
        >>> batch["value_target"].flatten().tolist()  # rewards 1, 2, 3; next values 1, 2
        [1.5, 3.0, 3.0]
    """

    def explain_scan(self, steps: Transitions) -> str:
        """Say which scan computes the returns of steps: none."""
        return "none: each target looks one row ahead"

    def estimate(self, valued: ValuedTransitions) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets of steps, ``[M, *G, C]`` each."""
        terminated = valued.steps.terminated
        check_steps(valued.reward, value=valued.value, next_value=valued.next_value)
        target = td0(valued.reward, valued.next_value, terminated, gamma=valued.gamma)
        return finished(valued, target - valued.value, target)


class TDLambdaEstimator(ValueEstimator):
    """Estimates by λ-returns; the advantage is target - V(s).

    Args:
        gamma: discount in [0, 1].
        lmbda: 0 for one step, 1 for the whole trajectory.
        value_network: writes the values; None reads stored ones.
        settings: what `ValueEstimator` takes besides.

    Raises:
        ValueError: a factor is outside [0, 1].

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> estimator = TDLambdaEstimator(gamma=0.5, lmbda=0.5, value_network=net)
        >>> estimator(trajectories([3]))["value_target"].flatten().tolist()
        [2.0625, 3.25, 3.0]
    """

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        value_network: TensorDictModuleBase | None,
        **settings: Any,
    ) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **settings)
        check_fraction("lmbda", lmbda)
        self.lmbda = lmbda

    def explain_scan(self, steps: Transitions) -> str:
        """Say which scan computes the returns of steps, and why."""
        if steps.ahead is not None:
            return N_STEPS
        factors = steps.per_step(self.gamma), steps.factor("lmbda", self.lmbda)
        return explain_scan(factors, steps.reward, has_loops=False)

    def estimate(self, valued: ValuedTransitions) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets of steps, ``[M, *G, C]`` each."""
        target = lambda_returns(valued, self.lmbda)
        return finished(valued, target - valued.value, target)


class TD1Estimator(TDLambdaEstimator):
    """Estimates by discounted returns to the end of each trajectory, bootstrapped there.

    Args:
        gamma: discount in [0, 1].
        value_network: writes the values; None reads stored ones.
        settings: what `ValueEstimator` takes besides.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> batch = TD1Estimator(gamma=0.5, value_network=net)(trajectories([3]))
        >>> batch["value_target"].flatten().tolist()
        [2.75, 3.5, 3.0]
    """

    def __init__(
        self, *, gamma: float | Tensor, value_network: TensorDictModuleBase | None, **settings: Any
    ) -> None:
        super().__init__(gamma=gamma, lmbda=1.0, value_network=value_network, **settings)


def lambda_returns(valued: ValuedTransitions, lmbda: float | Tensor) -> Tensor:
    """Compute λ-returns, over plain steps or n-step rows."""
    # On n-step rows Gₜ = Rₜ + γᵐ ((1 - λ) V(sₜ₊ₘ) + λ Gₜ₊ₘ), m the row's own number of steps.
    reward, ahead, terminated = valued.reward, valued.next_value, valued.steps.terminated
    check_steps(reward, value=valued.value, next_value=ahead)
    if valued.steps.ahead is None:
        cut, gamma, lmbda = valued.cut, valued.gamma, valued.steps.factor("lmbda", lmbda)
        return td_lambda(reward, ahead, terminated, cut, gamma=gamma, lmbda=lmbda, time_dim=0)
    kept = mixing_factor(valued, lmbda)
    term = reward + valued.gamma * (1 - kept) * zeroed(ahead, terminated)
    return over_jumps(valued, kept, term)


def mixing_factor(valued: ValuedTransitions, lmbda: float | Tensor) -> Tensor:
    """The λ of n-step rows: 0 at a cut, where a row bootstraps from its own next value."""
    successor, lmbda = valued.steps.successor, valued.steps.factor("lmbda", lmbda)
    cut = valued.cut | valued.steps.widen(successor == len(successor))
    like = valued.reward
    return torch.where(cut, 0, torch.as_tensor(lmbda, dtype=like.dtype, device=like.device))


def over_jumps(valued: ValuedTransitions, kept: Tensor, term: Tensor) -> Tensor:
    """Add up terms of n-step rows, from each row to the one that it reaches."""
    decay = (valued.gamma * kept).expand(term.shape)
    return jumping_scan(decay, term, valued.steps.successor)
