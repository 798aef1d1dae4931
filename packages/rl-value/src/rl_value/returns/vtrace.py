"""Returns corrected for another policy's actions."""

from __future__ import annotations

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
from rl_value.scan.linear_scan import linear_scan


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
    if not (rho_thresh >= 0 and c_thresh >= 0):
        msg = f"bounds of ratios must not be negative: got {rho_thresh=} and {c_thresh=}."
        raise ValueError(msg)
    ratio = log_ratio.exp()
    rho = ratio.clamp(max=rho_thresh)
    cut = cut_after(done | terminated, time_dim)
    delta = rho * (reward + gamma * zeroed(next_value, terminated) - value)
    decay = decay_of(gamma, lmbda, cut, reward) * ratio.clamp(max=c_thresh)
    correction = linear_scan(zeroed(decay, cut), delta, time_dim=time_dim)
    later = zeroed(correction.roll(-1, time_of(reward, time_dim)), cut)  # the last step is cut
    return delta + rho * gamma * later, value + correction
