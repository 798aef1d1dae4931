"""Base class of the losses of an actor whose entropy is held near a target."""

from __future__ import annotations

from torch import Tensor

from rl_tensordict import NestedKey
from rl_value.losses.bootstrapped.actor_critics import ActorCriticsLoss
from rl_value.losses.bootstrapped.temperature import Temperature


class SoftActorCriticsLoss(ActorCriticsLoss):
    """A loss with a bonus for entropy, whose weight α is learned."""

    actor_method = "get_dist"
    temperature: Temperature

    @property
    def log_alpha(self) -> Tensor:
        """The logarithm of the weight of the entropy: a parameter, or a constant."""
        return self.temperature.log_alpha

    @property
    def target_entropy(self) -> Tensor:
        """The entropy that α is learned for."""
        return self.temperature.target_entropy

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_actor", "loss_qvalue", "loss_alpha", "alpha", "entropy"]
