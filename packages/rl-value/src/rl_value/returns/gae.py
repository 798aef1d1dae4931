"""Generalised advantages."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rl_layout.internals import is_of_use, run_compiled
from rl_value.arguments import (
    check_flags,
    check_fraction,
    check_steps,
    decay_of,
    time_of,
    zeroed,
)
from rl_value.scan.constant_decay import cuts_of, discounted_scan, empty_rows, is_plain, rows_of
from rl_value.scan.linear_scan import linear_scan
from rl_value.scan.powers import Flags, Floats

LOOPS = "rl_value.scan.numba_loops"


def gae(  # noqa: PLR0913 - the equation has seven symbols, and time a place
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    *,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """Compute generalised advantages and the value targets that go with them.

    δₜ = rₜ + γ V(s'ₜ) - V(sₜ), with V(s'ₜ) = 0 where the step terminated, and
    Aₜ = δₜ + γ λ Aₜ₊₁, with Aₜ₊₁ = 0 where nothing follows. The target is Aₜ + V(sₜ).
    (Schulman et al., arXiv:1506.02438.)

    Args:
        reward: float ``[*B, T, C]``.
        value: value of each step's state, the same shape.
        next_value: value of each step's own next state, the same shape.
        terminated: bool, the same shape or 1 last.
        done: bool, the steps after which nothing flows; the last one is, marked or not. Every
            terminated step is done.
        gamma: discount in [0, 1], or one per step.
        lmbda: 0 for one step, 1 for the whole trajectory, or one per step.
        time_dim: dimension of time.

    Returns:
        Advantage and target, ``[*B, T, C]`` each.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape is, a factor is outside [0, 1], or a step is terminated
            and not done, as where the two are swapped.

    Example:
        >>> import torch
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> advantage, target = gae(one, one, one * 8, no, no, gamma=0.5, lmbda=0.5)
        >>> advantage.flatten().tolist(), target.flatten().tolist()
        ([5.0, 4.0], [6.0, 5.0])
    """
    check_steps(reward, value=value, next_value=next_value)
    check_flags(reward, terminated=terminated, done=done)
    check_fraction("gamma", gamma, reward.shape)
    check_fraction("lmbda", lmbda, reward.shape)
    arrays = (reward, value, next_value)
    if is_plain((gamma, lmbda), *arrays):
        factors = (float(gamma), float(lmbda))
        return _in_pieces(arrays, terminated, done, factors, time_dim)
    delta = reward + gamma * zeroed(next_value, terminated) - value
    decay = decay_of(gamma, lmbda, done | terminated, reward)
    advantage = linear_scan(decay, delta, time_dim=time_dim)
    return advantage, advantage + value


def _in_pieces(
    arrays: tuple[Tensor, Tensor, Tensor],
    terminated: Tensor,
    done: Tensor,
    factors: tuple[float, float],
    time_dim: int,
) -> tuple[Tensor, Tensor]:
    """Advantages and targets, by reading each step once."""
    reward, (gamma, lmbda) = arrays[0], factors
    dim = time_of(reward, time_dim)
    flag = terminated if terminated.shape == reward.shape else terminated.expand(reward.shape)
    rewards, values, ahead, ended = rows_of(dim, *arrays, flag)

    target, targets = empty_rows(reward, dim)
    size, decay = reward.numel(), gamma * lmbda
    if decay and is_of_use(LOOPS, size):  # with no decay not even what is not finite is carried
        advantage, advantages = empty_rows(reward, dim)
        cut = cuts_of((done, terminated), reward.shape, dim)
        given = (rewards, values, ahead, ended, cut, gamma, decay, advantages, targets)
        if run_compiled(LOOPS, "gae_rows", size, *given):
            return advantage, target

    def fill(here: slice, _: Flags, delta: Floats) -> None:
        np.multiply(ahead[here], gamma, out=delta)
        np.copyto(delta, 0, where=ended[here])
        np.add(delta, rewards[here], out=delta)
        np.subtract(delta, values[here], out=delta)

    def finish(here: slice, advantage: Floats) -> None:
        np.add(advantage, values[here], out=targets[here])

    ends = (done, terminated)
    return discounted_scan(gamma * lmbda, ends, reward, fill, time_dim, finish), target
