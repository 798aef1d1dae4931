"""Soft actor-critic of choices."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import UnfitValue
from rl_tensordict.arguments import check_whole
from rl_value.actions import distribution_of
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.bootstrapped.temperature import Temperature, entropy_target
from rl_value.losses.dqn import action_space_of, stored_index
from rl_value.losses.off_policy.soft_actor_critics import SoftActorCriticsLoss
from rl_value.masked_means import kept, reduce


class DiscreteSACLoss(SoftActorCriticsLoss):
    """Soft actor-critic of choices, with sums over all actions in the place of samples.

        target    r + γ Σ_b π(b | s') (minᵢ Q'ᵢ(s', b) - α log π(b | s'))
        critics   Σᵢ d(Qᵢ(s, a), target)
        actor     Σ_b π(b | s) (α log π(b | s) - minᵢ Qᵢ(s, b))
        α         log α (H(π(· | s)) - target entropy)

    Written is what `SACLoss` writes. (Christodoulou, arXiv:1910.07207.)

    Args:
        actor_network: has ``get_dist``, a distribution of choices with `probs` ``[*B, n]``.
        qvalue_network: writes ``"action_value"`` ``[*B, n]``, or ``[*B, num, n]`` if it is an
            ensemble; or a list of critics of one architecture.
        action_space: ``"one_hot"`` or ``"categorical"``; by default what a network says.
        num_actions: how many choices there are, for the automatic target entropy; by default as
            the spec says.
        alpha_init: the first α.
        min_alpha: least α.
        max_alpha: greatest α.
        fixed_alpha: do not learn α.
        target_entropy: a number; ``"auto"`` is `target_entropy_weight` of the greatest entropy.
        target_entropy_weight: share of log n.
        settings: what `ActorCriticsLoss` takes besides.

    Raises:
        ValueError: a setting is out of range, the target entropy or the action space is not known,
            or critics differ in shape.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> import torch
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
        >>> from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
        >>> actor = Sequential(
        ...     TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ...     ProbabilisticTensorDictModule(
        ...         ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ...     ),
        ... )
        >>> critic = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1) % 3
        >>> loss = DiscreteSACLoss(actor, critic, action_space="categorical", num_actions=3)
        >>> loss(batch)["loss_qvalue"].shape
        torch.Size([])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        action_space: Any = None,
        num_actions: int | None = None,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        target_entropy_weight: float = 0.98,
        **settings: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, **settings)
        if num_actions is not None:
            check_whole("num_actions", num_actions, 1)
        known = num_actions or getattr(getattr(self.spec, "space", None), "n", None)
        automatic = None if known is None else target_entropy_weight * math.log(known)
        advice = "pass num_actions=, action_spec=, or an actor that has a spec"
        wanted = entropy_target(target_entropy, automatic, advice)
        said = action_space if action_space is not None else self.spec
        self.action_space = action_space_of(said, self.qvalue_network)
        self.temperature = Temperature(alpha_init, (min_alpha, max_alpha), fixed_alpha, wanted)
        self._value_next_states(self._state_value)

    def _state_value(self, rows: TensorDictBase) -> Tensor:
        """The soft value of states."""
        probs, log_probs = _choices(self._next_actor, rows)
        values = self._values(self._next_critics, rows, probs).amin(-2)
        return (probs * (values - self.temperature.alpha * log_probs)).sum(-1, keepdim=True)

    def _values(self, critics: Any, rows: TensorDictBase, probs: Tensor) -> Tensor:
        """What critics say of all actions, ``[*B, num, n]``."""
        values, key = self._judged(critics, rows), self.entries["state_action_value"]
        if values.ndim != probs.ndim + 1 or values.shape[-1] != probs.shape[-1]:
            *shape, number = probs.shape
            msg = f"{key!r}: expected {[*shape, 'critics', number]}, a value of each of the "
            raise UnfitValue(msg + f"actor's {number} actions, got {list(values.shape)}.")
        return values

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        probs, log_probs = _choices(self.actor_network, seen)
        values = self._values(self.qvalue_network, seen, probs)
        index = stored_index(seen, self.entries["action"], probs, self.action_space, counted)
        wide = index.unsqueeze(-2).expand(*values.shape[:-1], 1)
        loss = self._critic_loss(batch, values.gather(-1, wide), targets, counted)
        least, alpha = values.detach().amin(-2), self.temperature.alpha
        cost = (probs * (alpha * log_probs - least)).sum(-1, keepdim=True)
        negative = kept((probs * log_probs).sum(-1, keepdim=True), counted)  # minus the entropy
        return {
            "loss_actor": self._reduce(kept(cost, counted), counted),
            "loss_qvalue": loss,
            "loss_alpha": self._reduce(self.temperature.surplus(negative), counted),
            "alpha": alpha,
            "entropy": -reduce(negative.detach(), counted),
        }


def _choices(actor: TensorDictModuleBase, rows: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Probabilities of all actions ``[*B, n]``, and their logarithms; 0 for impossible actions."""
    dist: Any = distribution_of(actor, rows)
    logits = getattr(dist, "logits", None)
    if not isinstance(logits, Tensor):
        msg = f"expected a distribution of choices from the actor, got {type(dist).__name__}: "
        raise TypeError(msg + "SACLoss is of continuous actions.")
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    floor = torch.finfo(log_probs.dtype).min
    return probs, log_probs.clamp(min=floor).masked_fill(probs == 0, 0)
