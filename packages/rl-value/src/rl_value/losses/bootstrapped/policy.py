"""Actions of an actor now, with gradients to it."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase, set_interaction_type
from torch import Tensor

from rl_tensordict import NestedKey, copied, require
from rl_value.actions import distribution_of
from rl_value.networks import noted


def drawn(
    actor: TensorDictModuleBase, rows: TensorDictBase, shape: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Actions drawn from an actor ``[*shape, *B, A]``, and their log-probabilities, of size 1."""
    dist = distribution_of(actor, rows)
    if not dist.has_rsample:
        msg = (
            f"{type(dist).__name__} draws no actions that gradients pass through: this loss is of "
            "continuous actions, as of a TanhNormal. DiscreteSACLoss and DQNLoss are of choices."
        )
        raise TypeError(msg)
    action = dist.rsample(torch.Size(shape))
    log_prob: Tensor = dist.log_prob(action)
    return action, log_prob.unsqueeze(-1)


def chosen(actor: TensorDictModuleBase, rows: TensorDictBase, action: NestedKey) -> Tensor:
    """The action of an actor without chance."""
    with set_interaction_type(InteractionType.DETERMINISTIC):
        found: Tensor = require(noted(actor, copied(rows)), action)
    return found


def smoothed(
    action: Tensor, scale: float, clip: float, bounds: tuple[Tensor, Tensor] | None
) -> Tensor:
    """An action with clipped normal noise, within its bounds."""
    noise = (torch.randn_like(action) * scale).clamp(-clip, clip)
    if bounds is None:
        return action + noise
    low, high = (bound.to(action.device, action.dtype) for bound in bounds)
    return torch.minimum(torch.maximum(action + noise, low), high)
