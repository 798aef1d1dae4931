"""Losses of an actor that chooses among K actions, and their gradients, by equations.

With logits z, p = softmax(z), the action a, its advantage A and H = -Σₖ pₖ log pₖ, a loss is

    L = -c Σ g(log pₐ, A) - c η Σ H,    c = 1 / n for means, 1 for sums

over the n steps that count. Its gradient needs nothing but what the loss was computed from:

    ∂ log pₐ / ∂ zₖ = [k = a] - pₖ,    ∂ H / ∂ zₖ = -pₖ (log pₖ + H)

So one node of autograd stands for some twenty. Arrays are ``[K, n]``: what is taken along K is
then taken of whole rows. On a few thousand steps the time goes into calls and not into numbers,
and a call of numpy takes half as long as one of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, from_numpy
from torch.autograd import Function

from rl_value.losses.arrays import Array, array_of

Plain = Callable[[Tensor], tuple[Tensor, Tensor]]
NARROW = 16.0  # logits this close together are shifted alike: no digit that counts is lost
FLOATS = (torch.float32, torch.float64)


@dataclass
class Gain:
    """What each step gains, and what one more in its log-probability would add.

    Args:
        value: ``[n]``.
        slope: ``[n]``.
        reported: statistics by name.
    """

    value: Array
    slope: Array
    reported: dict[str, float]


@dataclass
class Terms:
    """What the equations read beside the logits.

    Args:
        action: int64 ``[n]``, of the steps that count.
        counted: bool ``[N]``; None where all count.
        stored: advantages ``[n]``, and log-probabilities ``[n]`` where the loss reads them.
        shift: what is taken off all logits; None for each step's largest.
    """

    action: Array
    counted: Array | None
    stored: list[Array]
    shift: float | None


@dataclass
class Recipe:
    """How a loss is made of them.

    Args:
        gain: gives the gain of log-probabilities and what is stored, each ``[n]``.
        entropy_coeff: η.
        mean: whether losses are means or sums.
        plain: the same two losses of logits, by autograd, for gradients of gradients.
    """

    gain: Callable[..., Gain]
    entropy_coeff: float
    mean: bool
    plain: Plain


def terms_of(
    logits: Tensor, action: Tensor | None, counted: Tensor | None, stored: list[Tensor]
) -> Terms | None:
    """Collect what the equations read, where they are for it.

    Args:
        logits: ``[*B, K]``.
        action: int64 ``[*B]``.
        counted: bool ``[*B]``; None where every step counts.
        stored: advantages, and log-probabilities where the loss reads them, ``[*B]`` or
            ``[*B, 1]``.

    Returns:
        The terms; None where a logit is not finite, an action none of the K, no step counts, or
        something is not in this machine's memory as float32 or float64.

    Example:
        >>> terms = terms_of(torch.zeros(2, 3), torch.tensor([0, 2]), None, [torch.ones(2)])
        >>> terms.action
        array([0, 2])
        >>> terms_of(torch.zeros(2, 3), torch.tensor([0, 3]), None, [torch.ones(2)]) is None
        True
    """
    taken, whole = array_of(action, torch.int64), array_of(logits, logits.dtype)
    if taken is None or whole is None or logits.dtype not in FLOATS:
        return None
    where = None if counted is None else counted.reshape(-1).numpy()
    kept = []
    for values in (taken, *(array_of(entry, logits.dtype) for entry in stored)):
        if values is None:
            return None
        flat = values.reshape(-1)
        kept.append(flat if where is None else flat[where])
    chosen = kept[0]
    if not chosen.size or whole.shape[:-1] != taken.shape:
        return None
    low, high = whole.min(), whole.max()
    finite, known = -np.inf < low <= high < np.inf, 0 <= chosen.min() <= chosen.max()
    if not finite or not known or chosen.max() >= whole.shape[-1]:
        return None
    return Terms(chosen, where, kept[1:], float(high) if high - low < NARROW else None)


def losses_of_choice(
    recipe: Recipe, terms: Terms, logits: Tensor
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Compute the objective -c Σ g and the entropy loss -c η Σ H.

    Args:
        recipe: how the losses are made.
        terms: what they are made of.
        logits: ``[*B, K]``.

    Returns:
        Two scalars, and statistics by name, ``"entropy"`` among them.

    Example:
        >>> def gain(log_prob, advantage):
        ...     return Gain(log_prob * advantage, advantage, {})
        >>> logits = torch.zeros(2, 2)
        >>> terms = terms_of(logits, torch.tensor([0, 1]), None, [torch.ones(2, 1)])
        >>> recipe = Recipe(gain, 0.5, True, lambda logits: None)
        >>> losses_of_choice(recipe, terms, logits)[:2]
        (tensor(0.6931), tensor(-0.3466))
    """
    reported: dict[str, float] = {}
    with np.errstate(all="ignore"):  # weights that are infinite are for the caller to see
        objective, bonus = _Choice.apply(recipe, terms, reported, logits)  # type: ignore[no-untyped-call]
    return objective, bonus, reported


class _Choice(Function):
    """Both losses of logits; the gradient from what was computed on the way."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe, terms: Terms, reported: dict[str, float], logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = logits.detach().numpy().reshape(-1, logits.shape[-1])
        log_p = (given if terms.counted is None else given[terms.counted]).T.copy()  # [K, n]
        steps = log_p.shape[1]
        log_p -= np.maximum.reduce(log_p, 0) if terms.shift is None else terms.shift
        p = np.exp(log_p)
        total = np.add.reduce(p, 0)
        p /= total
        log_p -= np.log(total, out=total)
        places = terms.action * steps
        places += np.arange(steps)
        gain = recipe.gain(log_p.reshape(-1).take(places), *terms.stored)
        p_log_p = np.multiply(p, log_p, out=log_p)
        negative = np.add.reduce(p_log_p, 0)  # [n], -H
        share = 1 / steps if recipe.mean else 1.0
        bonus = recipe.entropy_coeff * share
        entropy = -float(np.add.reduce(negative))
        reported.update(gain.reported, entropy=entropy / steps)
        ctx.kept = p, p_log_p, negative, places, gain.slope
        ctx.shares, ctx.counted, ctx.plain = (share, bonus), terms.counted, recipe.plain
        ctx.save_for_backward(logits)
        ctx.set_materialize_grads(False)
        objective = torch.scalar_tensor(
            -share * float(np.add.reduce(gain.value)), dtype=logits.dtype
        )
        return objective, torch.scalar_tensor(-bonus * entropy, dtype=logits.dtype)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[None, None, None, Tensor | None]:
        (logits,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, None, _twice(ctx.plain, logits, *given)
        p, p_log_p, negative, places, slope = ctx.kept
        weights = [0.0 if grad is None else float(grad) for grad in given]
        share, bonus = (p.dtype.type(c * g) for c, g in zip(ctx.shares, weights, strict=True))
        pull = slope * -share  # [n], what log pₐ adds to the losses
        each = negative * bonus
        each += pull
        made = p_log_p * bonus
        made -= p * each  # [K, n]
        flat = from_numpy(made).view(-1).index_add_(0, from_numpy(places), from_numpy(pull))
        made_there = flat.view(p.shape).t()
        return None, None, None, _laid_out(made_there, ctx.counted, logits.shape)


def _laid_out(made: Tensor, counted: Array | None, shape: torch.Size) -> Tensor:
    """Write a gradient ``[n, K]`` as ``[*B, K]``, zeros where steps do not count."""
    if counted is None:
        return made if made.shape == shape else made.reshape(shape)
    whole = made.new_zeros(counted.size, shape[-1])
    whole[from_numpy(counted)] = made
    return whole.view(shape)


def _twice(plain: Plain, logits: Tensor, *given: Tensor | None) -> Tensor | None:
    """A gradient that has gradients itself."""
    pairs = [
        (loss, grad) for loss, grad in zip(plain(logits), given, strict=True) if grad is not None
    ]
    losses, grads = zip(*pairs, strict=True)
    found = torch.autograd.grad(losses, logits, grads, create_graph=True, allow_unused=True)
    return found[0]
