"""The plain policy gradient."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase

from rl_tensordict import NestedKey
from rl_value.losses.actor_critic import ActorCriticLoss


class ReinforceLoss(ActorCriticLoss):
    """The policy gradient: -E[log π(a|s) A], and a critic to compute A with.

    Written are ``loss_actor`` and ``loss_value``, to be added up. Where the batch has no
    advantages, the value estimator writes them.
    (Williams, Machine Learning 8, 1992.)

    Args:
        actor_network: has ``get_dist``, the distribution of actions now.
        critic_network: writes ``"state_value"``; None if advantages are stored.
        settings: what `ActorCriticLoss` takes besides; entropies are not part of this loss.

    Raises:
        TypeError: no actor is given, an entropy bonus is asked for, or an argument belongs
            elsewhere.
        ValueError: a setting is unknown or out of range.
        RuntimeError: `delay_value` with ``functional=False``.

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
        >>> critic = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1)
        >>> sorted(ReinforceLoss(actor, critic)(batch).keys())
        ['loss_actor', 'loss_value']
    """

    objective = "loss_actor"
    critic_name = "loss_value"

    def __init__(
        self,
        actor_network: TensorDictModuleBase | None = None,
        critic_network: TensorDictModuleBase | None = None,
        **settings: Any,
    ) -> None:
        if settings.get("delay_value") and settings.get("functional") is False:
            msg = "delay_value=True keeps parameters of its own: it needs functional=True."
            raise RuntimeError(msg)
        settings.setdefault("log_explained_variance", False)
        if settings.setdefault("entropy_bonus", False) or settings.get("entropy_coeff"):
            msg = "entropies are not part of ReinforceLoss: take A2CLoss for an entropy bonus."
            raise TypeError(msg)
        super().__init__(actor_network, critic_network, **settings)

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_actor", *self._critic_keys()]
