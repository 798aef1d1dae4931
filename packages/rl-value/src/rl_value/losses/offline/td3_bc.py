"""TD3 that stays near stored actions."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import NestedKey, require
from rl_value.arguments import check_weights
from rl_value.losses.bootstrapped.policy import chosen
from rl_value.losses.off_policy.td3 import TD3Loss
from rl_value.masked_means import kept, reduce


class TD3BCLoss(TD3Loss):
    """TD3 whose actor is also held to the stored actions (TD3+BC).

        actor     -λ Q₁(s, π(s)) + mean over dimensions of (π(s) - a)²,    λ = alpha / mean abs(Q₁)

    Everything else is as in `TD3Loss`; written are ``bc_loss`` and ``lmbd``, λ, besides.
    (Fujimoto and Gu, arXiv:2106.06860.)

    Args:
        actor_network: writes ``"action"``; of one with chance, what it takes without it.
        qvalue_network: as `TD3Loss` takes it.
        alpha: weight of the critics, in units of their mean value.
        settings: what `TD3Loss` takes besides.

    Raises:
        ValueError: as `TD3Loss`.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> import torch
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["action"])
        >>> class Critic(torch.nn.Linear):
        ...     def forward(self, observation, action):
        ...         return super().forward(torch.cat([observation, action], -1))
        >>> critic = TensorDictModule(
        ...     Critic(3, 1), ["observation", "action"], ["state_action_value"]
        ... )
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = torch.rand(7, 1)
        >>> TD3BCLoss(actor, critic, bounds=(-1.0, 1.0))(batch)["bc_loss"].shape
        torch.Size([])
    """

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        alpha: float = 2.5,
        **settings: Any,
    ) -> None:
        check_weights(alpha=alpha)
        super().__init__(actor_network, qvalue_network, **settings)
        self.alpha = alpha

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        names: list[NestedKey] = ["loss_actor", "bc_loss", "lmbd"]
        return [*names, "loss_qvalue", "pred_value", "target_value"]

    def _actor_terms(self, seen: TensorDictBase, counted: Tensor | None) -> dict[str, Tensor]:
        """The loss of the actor, and its parts."""
        key = self.entries["action"]
        action, taken = chosen(self.actor_network, seen, key), require(seen, key)
        values = kept(self._judged_for_actor(seen, action)[..., 0, :], counted)
        lmbd = self.alpha / reduce(values.detach().abs(), counted).clamp(min=1e-8)
        cloned = kept((action - taken).square().mean(-1, keepdim=True), counted)
        return {
            "loss_actor": self._reduce(cloned - lmbd * values, counted),
            "bc_loss": reduce(cloned.detach(), counted),
            "lmbd": lmbd,
        }
