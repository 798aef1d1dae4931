"""Slow twins to test against: one step at a time, from the end.

Arrays are ``[T, C]``, time first; flags are ``[T, 1]`` or ``[T, C]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_tensordict import CPU, as_tensor


def linear_scan(a: Tensor, b: Tensor, cut: Tensor) -> Tensor:
    """Compute yₜ = bₜ + aₜ yₜ₊₁ in a loop; at a cut yₜ = bₜ.

    Args:
        a: float ``[T, C]``.
        b: float ``[T, C]``.
        cut: bool ``[T, 1]`` or ``[T, C]``.

    Returns:
        ``[T, C]``.

    Example:
        >>> half, one = torch.full((2, 1), 0.5), torch.ones(2, 1)
        >>> linear_scan(half, one, torch.tensor([[False], [True]])).flatten()
        tensor([1.5000, 1.0000])
    """
    after, found = torch.zeros_like(b[0]), []
    for t in reversed(range(len(b))):
        after = b[t] + torch.where(cut[t], 0, a[t] * after)
        found.append(after)
    return torch.stack(found[::-1])


def td_lambda(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float | Tensor,
    lmbda: float,
) -> Tensor:
    """Compute λ-returns by their definition, in a loop; λ = 0 is `td0`, λ = 1 is `td1`.

    Args:
        reward: float ``[T, C]``.
        next_value: float ``[T, C]``.
        terminated: bool ``[T, 1]``.
        done: bool ``[T, 1]``.
        gamma: a number, or one per step ``[T, 1]``.
        lmbda: a number.

    Returns:
        ``[T, C]``.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> td_lambda(one, one * 8, no, no, 0.5, 0.5).flatten().tolist()
        [4.25, 5.0]
    """
    discount = as_tensor(gamma, reward.dtype).to(reward.device).expand(len(reward), 1)
    returns, found = torch.zeros_like(reward[0]), []
    for t in reversed(range(len(reward))):
        last = done[t] | terminated[t] | torch.tensor(t == len(reward) - 1, device=reward.device)
        mixed = torch.where(last, next_value[t], (1 - lmbda) * next_value[t] + lmbda * returns)
        returns = reward[t] + torch.where(terminated[t], 0, discount[t] * mixed)
        found.append(returns)
    return torch.stack(found[::-1])


def reward_to_go(reward: Tensor, done: Tensor, gamma: float) -> Tensor:
    """Add up discounted rewards, in a loop.

    Args:
        reward: float ``[T, C]``.
        done: bool ``[T, 1]``.
        gamma: a number.

    Returns:
        ``[T, C]``.

    Example:
        >>> no = torch.zeros(2, 1, dtype=torch.bool)
        >>> reward_to_go(torch.ones(2, 1), no, 0.5).flatten().tolist()
        [1.5, 1.0]
    """
    return linear_scan(torch.full_like(reward, gamma), reward, done)


def gae(  # noqa: PLR0913 - the equation has seven symbols
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float | Tensor,
    lmbda: float,
) -> tuple[Tensor, Tensor]:
    """Compute generalised advantages in a loop.

    Args:
        reward: float ``[T, C]``.
        value: float ``[T, C]``.
        next_value: float ``[T, C]``.
        terminated: bool ``[T, 1]``.
        done: bool ``[T, 1]``.
        gamma: a number, or one per step ``[T, 1]``.
        lmbda: a number.

    Returns:
        Advantage and target, ``[T, C]`` each.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> gae(one, one, one * 8, no, no, 0.5, 0.5)[0].flatten().tolist()
        [5.0, 4.0]
    """
    discount = as_tensor(gamma, reward.dtype).to(reward.device).expand(len(reward), 1)
    advantage, found = torch.zeros_like(reward[0]), []
    for t in reversed(range(len(reward))):
        ahead = torch.where(terminated[t], 0, next_value[t])
        delta = reward[t] + discount[t] * ahead - value[t]
        ends = done[t] | terminated[t]
        advantage = delta + torch.where(ends, 0, discount[t] * lmbda * advantage)
        found.append(advantage)
    advantages = torch.stack(found[::-1])
    return advantages, advantages + value


def vtrace(  # noqa: PLR0913 - the equation has ten symbols
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    log_ratio: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float,
    lmbda: float = 1.0,
    rho_thresh: float = 1.0,
    c_thresh: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute V-trace targets by the recursion of the paper's remark 1, in a loop.

    vₜ = V(sₜ) + δₜ + γ cₜ (vₜ₊₁ - V(sₜ₊₁)).

    Args:
        reward: float ``[T, C]``.
        value: float ``[T, C]``.
        next_value: float ``[T, C]``.
        log_ratio: float ``[T, C]``.
        terminated: bool ``[T, 1]``.
        done: bool ``[T, 1]``.
        gamma: a number.
        lmbda: a number.
        rho_thresh: bound of ρ.
        c_thresh: bound of c.

    Returns:
        Advantage and target, ``[T, C]`` each.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> half = torch.full((2, 1), 0.5).log()
        >>> vtrace(one, one, one * 8, half, no, no, 0.5)[1].flatten().tolist()
        [3.5, 3.0]
    """
    found = []
    target = value_after = torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        rho, c = (log_ratio[t].exp().clamp(max=bound) for bound in (rho_thresh, c_thresh))
        ahead = torch.where(terminated[t], 0, next_value[t])
        ends = done[t] | terminated[t] | torch.tensor(t == len(reward) - 1, device=reward.device)
        surplus = torch.where(ends, 0, target - value_after)  # vₜ₊₁ - V(sₜ₊₁)
        advantage = rho * (reward[t] + gamma * (ahead + surplus) - value[t])
        target = value[t] + rho * (reward[t] + gamma * ahead - value[t])
        target = target + gamma * lmbda * c * surplus
        value_after = value[t]
        found.append((advantage, target))
    advantages, targets = zip(*found[::-1], strict=True)
    return torch.stack(advantages), torch.stack(targets)


def grpo(
    log_prob: list[Tensor],
    before: list[Tensor],
    advantage: list[float],
    epsilon: tuple[float, float],
    groups: list[int] | None = None,
    over: str = "token",
) -> Tensor:
    """Compute the clipped objective of some sequences, one token after the other."""
    # log_prob: float ``[t]`` of each sequence, of its actions that count alone.
    # before: float ``[t]`` of each, when they were sampled.
    parts: dict[int, list[Tensor]] = {}
    for place, (now, then, gain) in enumerate(zip(log_prob, before, advantage, strict=True)):
        for token in range(len(now)):
            ratio = (now[token] - then[token]).exp()
            clipped = ratio.clamp(1 - epsilon[0], 1 + epsilon[1])
            part = {"token": 0, "group": groups[place] if groups else 0}.get(over, place)
            parts.setdefault(part, []).append(-torch.minimum(ratio * gain, clipped * gain))
    if not parts:
        return torch.zeros((), device=CPU)
    sums = [torch.stack(costs).sum() for costs in parts.values()]
    sizes = [1 if over == "sequence_sum" else len(costs) for costs in parts.values()]
    return torch.stack([total / size for total, size in zip(sums, sizes, strict=True)]).mean()
