"""Advantage actor-critic."""

from __future__ import annotations

from rl_tensordict import NestedKey
from rl_value.losses.actor_critic import ActorCriticLoss


class A2CLoss(ActorCriticLoss):
    """The policy gradient with advantages: -E[log π(a|s) A].

    Written are ``loss_objective``, ``loss_critic`` and ``loss_entropy``, to be added up, and
    ``entropy`` and ``explained_variance``. (Mnih et al., arXiv:1602.01783.) It takes what
    `ActorCriticLoss` takes.

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
        >>> A2CLoss(actor, critic)(batch)["loss_objective"].shape
        torch.Size([])
    """

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_objective", *self._critic_keys(), *self._entropy_keys()]
