"""The loss of a critic: how far its values are from their targets, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_value.losses.arrays import array_of, is_eager
from rl_value.losses.closed_form import FLOATS
from rl_value.losses.diagnostics import explained_share, explained_variance
from rl_value.losses.masked_means import Reduction, kept, reduce
from rl_value.losses.precomputed_loss import PrecomputedLoss, attach
from rl_value.losses.regression import distance, distances_apart, reduced_distance


@dataclass(frozen=True)
class CriticSettings:
    """How the loss of a critic is computed."""

    name: str  # of the loss among the results
    kind: str  # a distance, as distance takes it
    weight: float | Tensor  # coefficient of the loss
    bound: float | None  # how far a value may move from the stored one; None for any distance
    explains: bool  # whether explained_variance is reported
    reduction: Reduction  # "mean", "sum" or "none"


def critic_terms(
    value: Tensor,
    target: Tensor,
    stored: Tensor | None,
    counted: Tensor | None,
    settings: CriticSettings,
) -> dict[str, Tensor]:
    """Compute the loss of a critic and its statistics, by equations where it has them."""
    found = critic_closed_form(value, target, counted, settings)
    return critic_by_autograd(value, target, stored, counted, settings) if found is None else found


def critic_closed_form(
    value: Tensor, target: Tensor, counted: Tensor | None, settings: CriticSettings
) -> dict[str, Tensor] | None:
    """The same in a few passes; None where values and targets are something else."""
    weight = settings.weight
    if settings.bound is not None or settings.reduction == "none" or not is_eager():
        return None
    if not isinstance(weight, int | float):
        return None
    values, targets = array_of(value, value.dtype), array_of(target, value.dtype)
    if values is None or targets is None or values.shape != targets.shape:
        return None
    where = None if counted is None else counted.reshape(-1).numpy()
    if where is not None:
        values, targets = (rows.reshape(where.size, -1)[where] for rows in (values, targets))
    if not values.size or value.dtype not in FLOATS:
        return None

    def again(value: Tensor) -> tuple[Tensor]:
        wanted, near = kept(target, counted), kept(value, counted)
        loss = reduced_distance(near, wanted, settings.kind, counted, settings.reduction)
        return (weight * loss,)

    reported = {}
    with np.errstate(all="ignore"):
        apart = values - targets
        each, slope = distances_apart(apart, settings.kind)
        share = weight / (each.size if settings.reduction == "mean" else 1)
        loss = share * float(np.add.reduce(each.reshape(-1)))
        if settings.explains:
            reported["explained_variance"] = explained_share(apart.reshape(-1), targets.reshape(-1))
    known = PrecomputedLoss((loss,), lambda by: slope * (share * by), where, again)
    return {settings.name: attach(known, value)[0], **as_tensors(reported, value.dtype)}


def critic_by_autograd(
    value: Tensor,
    target: Tensor,
    stored: Tensor | None,
    counted: Tensor | None,
    settings: CriticSettings,
) -> dict[str, Tensor]:
    """The same as `critic_terms`, of any values and with any setting."""
    target, value = kept(target, counted), kept(value, counted)
    reported, kind, bound = {}, settings.kind, settings.bound
    if bound is None or stored is None:
        loss = reduced_distance(value, target, kind, counted, settings.reduction)
    else:
        found = distance(value, target, kind)
        stored = kept(stored, counted)
        moved = value - stored
        near = stored + moved.clamp(-bound, bound)
        share = (moved.detach().abs() > bound).to(value.dtype)
        reported["value_clip_fraction"] = reduce(share, counted).detach()
        loss = reduce(torch.max(found, distance(near, target, kind)), counted, settings.reduction)
    if settings.explains:
        spread = explained_variance(value.detach(), target, counted)
        reported["explained_variance"] = spread
    plain = isinstance(settings.weight, int | float) and settings.weight == 1
    return {settings.name: loss if plain else settings.weight * loss, **reported}


def as_tensors(reported: dict[str, float], dtype: torch.dtype) -> dict[str, Tensor]:
    """Statistics as tensors."""
    return {name: torch.scalar_tensor(value, dtype=dtype) for name, value in reported.items()}
