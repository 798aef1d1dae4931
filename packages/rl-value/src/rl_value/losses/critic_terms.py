"""The loss of a critic: how far its values are from their targets, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_value.losses.regression import distance, reduced_distance
from rl_value.masked_means import Reduction, explained_variance, kept, reduce


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
    """Compute the loss of a critic and its statistics."""
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
