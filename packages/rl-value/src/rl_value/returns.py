"""Returns and advantages of plain arrays, cut where trajectories end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl_layout.internals import LEAST_ROWS, is_of_use
from rl_value.arguments import (
    check_bounds,
    check_flags,
    check_fraction,
    check_steps,
    cut_after,
    decay_of,
    time_of,
    zeroed,
)
from rl_value.scan.block_scan import (
    BLOCKS,
    LOOPS,
    constant_scan,
    cuts_of,
    empty_rows,
    gae_of_rows,
    is_transformed,
    obstacle,
    rows_of,
)
from rl_value.scan.linear_scan import general_scan, has_triton, linear_scan

__all__ = ["gae", "linear_scan", "reward_to_go", "td0", "td1", "td_lambda", "vtrace"]


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
    if not obstacle((gamma, lmbda), reward, next_value):
        factors, dim = (float(gamma), float(lmbda)), time_of(reward, time_dim)
        return _td_lambda_of_rows(reward, next_value, (terminated, done), factors, dim)
    cut = cut_after(done | terminated, time_dim)
    ahead = zeroed(next_value, terminated)
    kept = decay_of(1.0, lmbda, cut, reward)  # λ, and 0 where nothing follows
    ahead = (ahead - kept * ahead).masked_fill(kept == 1, 0)  # λ = 1 reads no value on the way
    term = reward + gamma * ahead
    return linear_scan(decay_of(gamma, lmbda, cut, reward), term, time_dim=time_dim)


def _td_lambda_of_rows(
    reward: Tensor,
    next_value: Tensor,
    ends: tuple[Tensor, Tensor],
    factors: tuple[float, float],
    dim: int,
) -> Tensor:
    """λ-returns of steps in the memory of the CPU; `ends` are terminated and done."""
    gamma, lmbda = factors
    rewards, ahead, ended, done = rows_of(dim, reward, next_value, *ends)
    cut, (found, rows) = cuts_of(reward.shape[dim], ended, done), empty_rows(reward, dim)
    with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
        term = ahead * gamma
        np.copyto(term, term * (1 - lmbda) if lmbda < 1 else 0, where=~cut)
        np.copyto(term, 0, where=ended)
        term += rewards
    constant_scan(gamma * lmbda, cut, term, rows)
    return found


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
    if not obstacle((gamma,), reward):
        dim = time_of(reward, time_dim)
        (term, ends), (found, rows) = rows_of(dim, reward, done), empty_rows(reward, dim)
        constant_scan(float(gamma), cuts_of(reward.shape[dim], ends), term, rows)
        return found
    return linear_scan(decay_of(gamma, 1.0, done, reward), reward, time_dim=time_dim)


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
    dim = time_of(reward, time_dim)
    arrays, factors = (reward, value, next_value), (gamma, lmbda)
    scan = general_gae if obstacle(factors, *arrays) else gae_of_rows
    return scan(arrays, (terminated, done), factors, dim)


def general_gae(
    arrays: tuple[Tensor, Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    factors: tuple[float | Tensor, float | Tensor],
    dim: int,
) -> tuple[Tensor, Tensor]:
    """Compute what `gae` does, unchecked, by torch; arrays are reward, value and next value."""
    reward, value, next_value = arrays
    if reward.is_cuda and has_kernel(arrays, ends, factors, dim):
        from rl_value.scan.triton.gae import gae as kernel

        numbers = float(factors[0]), float(factors[1])
        found: tuple[Tensor, Tensor] = kernel(arrays, ends, numbers, reward.shape[dim])
        return found
    delta = reward + factors[0] * zeroed(next_value, ends[0]) - value
    decay = decay_of(*factors, ends[1] | ends[0], reward)
    advantage = linear_scan(decay, delta, time_dim=dim)
    return advantage, advantage + value


def has_kernel(
    arrays: Sequence[Tensor], ends: Sequence[Tensor], factors: Sequence[float | Tensor], dim: int
) -> bool:
    """Whether one kernel computes the advantages of these steps, whose rows lie end to end."""
    reward, wanted = arrays[0], torch.is_grad_enabled()
    return (
        not is_transformed()
        and not any(isinstance(factor, Tensor) for factor in factors)
        and reward.numel() == reward.shape[: dim + 1].numel() > 0
        and all(each.shape == reward.shape and each.is_contiguous() for each in (*arrays, *ends))
        and all(each.device == reward.device for each in (*arrays, *ends))
        and all(each.dtype == torch.float32 for each in arrays)
        and not (wanted and any(each.requires_grad for each in arrays))
        and has_triton()
    )


def vtrace(  # noqa: PLR0913 - the equation has ten symbols, and time a place
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    log_ratio: Tensor,
    terminated: Tensor,
    done: Tensor,
    *,
    gamma: float | Tensor,
    lmbda: float | Tensor = 1.0,
    rho_thresh: float = 1.0,
    c_thresh: float = 1.0,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """Compute V-trace targets, and the advantages of a policy gradient.

    With ρₜ = min(ρ̄, wₜ), cₜ = λ min(c̄, wₜ), wₜ = π(aₜ|sₜ) / μ(aₜ|sₜ):

    δₜ = ρₜ (rₜ + γ V(s'ₜ) - V(sₜ)), with V(s'ₜ) = 0 where the step terminated,
    yₜ = δₜ + γ cₜ yₜ₊₁, with yₜ₊₁ = 0 where nothing follows, and the target is V(sₜ) + yₜ.
    Aₜ = ρₜ (rₜ + γ v'ₜ - V(sₜ)), where v'ₜ is V(s'ₜ) + yₜ₊₁, the target of the next step.
    (Espeholt et al., arXiv:1802.01561; λ as in its remark 2.)

    Args:
        reward: float ``[*B, T, C]``.
        value: value of each step's state, the same shape.
        next_value: value of each step's own next state, the same shape.
        log_ratio: log π - log μ of each action, the same shape.
        terminated: bool, the same shape or 1 last.
        done: bool, the steps after which nothing flows; the last one is, marked or not. Every
            terminated step is done.
        gamma: discount in [0, 1], or one per step.
        lmbda: how far corrections reach, in [0, 1].
        rho_thresh: ρ̄, which bounds the weight of a step; it decides what is converged to.
        c_thresh: c̄, which bounds what is carried from later steps.
        time_dim: dimension of time.

    Returns:
        Advantage and target, ``[*B, T, C]`` each.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape is, a factor is outside [0, 1], a bound below 0, or a step is
            terminated and not done, as where the two are swapped.

    Example:
        >>> import torch
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> half = torch.full((2, 1), 0.5).log()
        >>> advantage, target = vtrace(one, one, one * 8, half, no, no, gamma=0.5)
        >>> advantage.flatten().tolist(), target.flatten().tolist()
        ([2.5, 2.0], [3.5, 3.0])
    """
    check_steps(reward, value=value, next_value=next_value, log_ratio=log_ratio)
    check_flags(reward, terminated=terminated, done=done)
    check_fraction("gamma", gamma, reward.shape)
    check_fraction("lmbda", lmbda, reward.shape)
    check_bounds(rho_thresh=rho_thresh, c_thresh=c_thresh)
    ratio = log_ratio.exp()
    rho = ratio.clamp(max=rho_thresh)
    cut = cut_after(done | terminated, time_dim)
    delta = rho * (reward + gamma * zeroed(next_value, terminated) - value)
    decay = decay_of(gamma, lmbda, cut, reward) * ratio.clamp(max=c_thresh)
    correction = linear_scan(zeroed(decay, cut), delta, time_dim=time_dim)
    later = zeroed(correction.roll(-1, time_of(reward, time_dim)), cut)  # the last step is cut
    return delta + rho * gamma * later, value + correction


def explain_scan(factors: tuple[float | Tensor, ...], reward: Tensor, *, has_loops: bool) -> str:
    """Say how returns of these steps are scanned, and why; `has_loops` is said of `gae`."""
    why = obstacle(factors, reward)
    if why:
        return f"{general_scan(reward)}: {why}"
    if not has_loops:
        return f"{BLOCKS}: constant factors on the CPU"
    if is_of_use(LOOPS, reward.numel()):
        return f"numba, in one pass: {reward.numel():,} steps with constant factors on the CPU"
    few = reward.numel() < LEAST_ROWS
    return f"{BLOCKS}: {f'below {LEAST_ROWS:,} steps' if few else 'numba is not of use here'}"
