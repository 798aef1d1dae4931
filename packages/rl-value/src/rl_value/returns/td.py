"""Returns that bootstrap: one step, to the end, and their mixture."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rl_value.arguments import (
    check_flags,
    check_fraction,
    check_steps,
    cut_after,
    decay_of,
    time_of,
    zeroed,
)
from rl_value.scan.constant_decay import discounted_scan, is_plain, rows_of
from rl_value.scan.linear_scan import linear_scan
from rl_value.scan.powers import Flags, Floats


def td0(reward: Tensor, next_value: Tensor, terminated: Tensor, *, gamma: float | Tensor) -> Tensor:
    """Compute one-step returns.

    Gₜ = rₜ + γ V(s'ₜ), without the second term where the step terminated.

    Args:
        reward: float ``[*B, T, C]``.
        next_value: value of each step's own next state, the same shape.
        terminated: bool, the same shape or 1 last.
        gamma: discount in [0, 1], or one per step; on n-step rows γ ** steps.

    Returns:
        ``[*B, T, C]``.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape is, or the discount is outside [0, 1].

    Example:
        >>> import torch
        >>> one, no = torch.ones(2, 1), torch.tensor([[False], [True]])
        >>> td0(one, one * 10, no, gamma=0.5).flatten().tolist()
        [6.0, 1.0]
    """
    check_steps(reward, next_value=next_value)
    check_flags(reward, terminated=terminated)
    check_fraction("gamma", gamma, reward.shape)
    return reward + gamma * zeroed(next_value, terminated)


def td1(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    *,
    gamma: float | Tensor,
    time_dim: int = -2,
) -> Tensor:
    """Compute discounted returns to the end of each trajectory, bootstrapped there.

    Gₜ = rₜ + γ Gₜ₊₁ inside a trajectory, Gₜ = rₜ + γ V(s'ₜ) where it ends, and Gₜ = rₜ where it
    terminated. It is `td_lambda` with λ = 1.

    Args:
        reward: float ``[*B, T, C]``.
        next_value: value of each step's own next state, the same shape.
        terminated: bool, the same shape or 1 last.
        done: bool, the steps after which nothing flows; the last one is, marked or not. Every
            terminated step is done.
        gamma: discount in [0, 1], or one per step.
        time_dim: dimension of time.

    Returns:
        ``[*B, T, C]``.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape is, or the discount is outside [0, 1].

    Example:
        >>> import torch
        >>> one, no = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
        >>> td1(one, one * 8, no, no, gamma=0.5).flatten().tolist()
        [2.75, 3.5, 5.0]
    """
    return td_lambda(
        reward, next_value, terminated, done, gamma=gamma, lmbda=1.0, time_dim=time_dim
    )


def td_lambda(  # noqa: PLR0913 - the equation has six symbols, and time a place
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    *,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    time_dim: int = -2,
) -> Tensor:
    """Compute λ-returns.

    Gₜ = rₜ + γ ((1 - λ) V(s'ₜ) + λ Gₜ₊₁); where nothing follows, Gₜ = rₜ + γ V(s'ₜ), and Gₜ = rₜ
    where the step terminated. (Sutton and Barto, Reinforcement Learning, 12.1.)

    Args:
        reward: float ``[*B, T, C]``.
        next_value: value of each step's own next state, the same shape.
        terminated: bool, the same shape or 1 last.
        done: bool, the steps after which nothing flows; the last one is, marked or not. Every
            terminated step is done.
        gamma: discount in [0, 1], or one per step.
        lmbda: 0 for one step, 1 for the whole trajectory, or one per step.
        time_dim: dimension of time.

    Returns:
        ``[*B, T, C]``.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape is, a factor is outside [0, 1], or a step is terminated
            and not done, as where the two are swapped.

    Example:
        >>> import torch
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> td_lambda(one, one * 8, no, no, gamma=0.5, lmbda=0.5).flatten().tolist()
        [4.25, 5.0]
    """
    check_steps(reward, next_value=next_value)
    check_flags(reward, terminated=terminated, done=done)
    check_fraction("gamma", gamma, reward.shape)
    check_fraction("lmbda", lmbda, reward.shape)
    if is_plain((gamma, lmbda), reward, next_value):
        factors = (float(gamma), float(lmbda))
        return _in_pieces(reward, next_value, terminated, done, factors, time_dim)
    cut = cut_after(done | terminated, time_dim)
    ahead = zeroed(next_value, terminated)
    kept = decay_of(1.0, lmbda, cut, reward)  # λ, and 0 where nothing follows
    ahead = (ahead - kept * ahead).masked_fill(kept == 1, 0)  # λ = 1 reads no value on the way
    term = reward + gamma * ahead
    return linear_scan(decay_of(gamma, lmbda, cut, reward), term, time_dim=time_dim)


def _in_pieces(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    factors: tuple[float, float],
    time_dim: int,
) -> Tensor:
    """λ-returns, by reading each step once."""
    dim, (gamma, lmbda) = time_of(reward, time_dim), factors
    rewards, ahead, ended = rows_of(dim, reward, next_value, terminated.expand(reward.shape))

    def fill(here: slice, cut: Flags, term: Floats) -> None:
        np.multiply(ahead[here], gamma, out=term)
        np.copyto(term, term * (1 - lmbda) if lmbda < 1 else 0, where=~cut)
        np.copyto(term, 0, where=ended[here])
        np.add(term, rewards[here], out=term)

    return discounted_scan(gamma * lmbda, (done, terminated), reward, fill, time_dim)


def reward_to_go(
    reward: Tensor, done: Tensor, *, gamma: float | Tensor, time_dim: int = -2
) -> Tensor:
    """Add up the discounted rewards from each step to the end of its trajectory.

    Gₜ = rₜ + γ Gₜ₊₁, and Gₜ = rₜ where nothing follows.

    Args:
        reward: float ``[*B, T, C]``.
        done: bool, the steps after which nothing flows, the same shape or 1 last.
        gamma: discount in [0, 1], or one per step.
        time_dim: dimension of time.

    Returns:
        ``[*B, T, C]``.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape is, or the discount is outside [0, 1].

    Example:
        >>> import torch
        >>> done = torch.tensor([[False], [True], [False]])
        >>> reward_to_go(torch.ones(3, 1), done, gamma=0.5).flatten().tolist()
        [1.5, 1.0, 1.0]
    """
    check_steps(reward)
    check_flags(reward, done=done)
    check_fraction("gamma", gamma, reward.shape)
    if is_plain((gamma,), reward):
        (rows,) = rows_of(time_of(reward, time_dim), reward)

        def fill(here: slice, _: Flags, term: Floats) -> None:
            np.copyto(term, rows[here])

        return discounted_scan(float(gamma), (done,), reward, fill, time_dim)
    return linear_scan(decay_of(gamma, 1.0, done, reward), reward, time_dim=time_dim)
