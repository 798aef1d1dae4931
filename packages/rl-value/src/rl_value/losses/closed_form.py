"""Losses of an actor that chooses among K actions, and their gradients, by equations.

With logits z, p = softmax(z), the action a, its advantage A and H = -Σₖ pₖ log pₖ, a loss is

    L = -c Σ g(log pₐ, A) - c η Σ H,    c = 1 / n for means, 1 for sums

over the n steps that count. Its gradient needs nothing but what the loss was computed from:

    ∂ log pₐ / ∂ zₖ = [k = a] - pₖ,    ∂ H / ∂ zₖ = -pₖ (log pₖ + H)

So one node of autograd represents some twenty. Arrays are ``[K, n]``: what is taken along K is
then taken of whole rows. On a few thousand steps the time goes into calls and not into numbers,
and a call of numpy takes half as long as one of torch; the few kinds of call there are come again
and again, because the first of each kind takes several times as long as the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from rl_value.losses.arrays import Array, array_of
from rl_value.losses.precomputed_loss import PrecomputedLoss

FLOATS = (torch.float32, torch.float64)


@dataclass
class ObjectiveValues:
    """The objective of each step, and its derivative by the log-probability."""

    value: Array  # [n]
    slope: Array  # [n]
    reported: dict[str, float]  # statistics


@dataclass
class LossInputs:
    """Inputs of the equations, of the n steps that count."""

    logits: Array  # [n, K]
    action: Array  # int64 [n], each one of the K
    stored: list[Array]  # advantages [n], and log-probabilities [n] where the loss reads them
    counted: Array | None  # bool [N], which steps those are; None where all count


@dataclass
class ClosedFormLoss:
    """A loss as an equation of its inputs, with its settings."""

    gain: Callable[..., ObjectiveValues]  # of log-probabilities and what is stored, each [n]
    entropy_coeff: float  # η
    mean: bool  # whether losses are means or sums
    # the same two losses of logits by autograd, for gradients of gradients
    plain: Callable[[Tensor], tuple[Tensor, ...]]


def terms_of(
    logits: Tensor, action: Tensor | None, counted: Tensor | None, stored: list[Tensor]
) -> LossInputs | None:
    """Collect the inputs of the equations; None where the equations do not apply."""
    taken, whole = array_of(action, torch.int64), array_of(logits, logits.dtype)
    if taken is None or whole is None or logits.dtype not in FLOATS:
        return None
    choices = whole.shape[-1]
    if whole.shape[:-1] != taken.shape or not whole.size:
        return None
    where = None if counted is None else counted.reshape(-1).numpy()
    kept = [whole.reshape(-1, choices), taken.reshape(-1)]
    for entry in stored:
        values = array_of(entry, logits.dtype)
        if values is None:
            return None
        kept.append(values.reshape(-1))
    rows, chosen, *others = kept if where is None else [values[where] for values in kept]
    if not chosen.size or np.maximum.reduce(chosen.view(np.uint64)) >= choices:  # -1 is large too
        return None
    return LossInputs(rows, chosen, others, where)


def losses_of_choice(
    recipe: ClosedFormLoss, terms: LossInputs
) -> tuple[PrecomputedLoss, dict[str, float]] | None:
    """Compute the objective -c Σ g and the entropy loss -c η Σ H."""
    log_p = terms.logits.T.copy()  # [K, n]
    steps = log_p.shape[1]
    log_p -= np.maximum.reduce(log_p, 0)  # so that no exponential overflows
    p = np.exp(log_p)
    total = np.add.reduce(p, 0)
    p /= total
    log_p -= np.log(total, out=total)
    negative = np.add.reduce(p * log_p, 0)  # [n], -H
    entropy = -float(np.add.reduce(negative))
    if not isfinite(entropy):  # as it is of all logits that are finite
        return None
    places = terms.action * steps  # [n], flat places of log pₐ in [K, n]
    places += np.arange(steps)
    gain = recipe.gain(log_p.reshape(-1).take(places), *terms.stored)
    log_p -= negative  # log pₖ + H from here on, the factor in the gradient of H
    share = 1 / steps if recipe.mean else 1.0
    bonus = recipe.entropy_coeff * share

    def gradient(objective: float, entropy_loss: float) -> Array:
        pull = gain.slope * (-share * objective)  # [n], what log pₐ adds to the losses
        made = log_p * (bonus * entropy_loss)
        made -= pull
        made *= p
        made.reshape(-1)[places] += pull
        return made.T

    losses = -share * float(np.add.reduce(gain.value)), -bonus * entropy
    known = PrecomputedLoss(losses, gradient, terms.counted, recipe.plain)
    return known, gain.reported | {"entropy": entropy / steps}
