"""Deep deterministic policy gradients."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_flags
from rl_value.losses.bootstrapped.actor_critics import ActorCriticsLoss
from rl_value.losses.bootstrapped.critics import check_values, members_of
from rl_value.losses.bootstrapped.policy import chosen
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.masked_means import kept, reduce


class DDPGLoss(ActorCriticsLoss):
    """A deterministic actor and one critic (DDPG).

        target    r + γ Q'(s', π'(s'))
        critic    d(Q(s, a), target)
        actor     -Q(s, π(s))

    Written are ``loss_actor`` and ``loss_value``, to be added up, and ``pred_value`` and
    ``target_value``, means; into the batch ``"td_error"``, the squared error of each step
    ``[*B, T, 1]``. The actor's loss has no gradient in the critic.
    (Lillicrap et al., arXiv:1509.02971.)

    Args:
        actor_network: writes ``"action"``; of one with chance, what it takes without it.
        value_network: writes ``"state_action_value"`` ``[*B, 1]``.
        loss_function: ``"l1"``, ``"l2"`` or ``"smooth_l1"``.
        delay_actor: choose next actions by a copy of the actor that `SoftUpdate` moves.
        delay_value: value next states by a copy of the critic that `SoftUpdate` moves.
        settings: what `ActorCriticsLoss` takes besides.

    Raises:
        ValueError: a setting is out of range, or a recurrent part of the critic reads the action.
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
        >>> DDPGLoss(actor, critic)(batch)["loss_value"].shape
        torch.Size([])
    """

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        value_network: TensorDictModuleBase,
        *,
        loss_function: str = "l2",
        delay_actor: bool = False,
        delay_value: bool = True,
        **settings: Any,
    ) -> None:
        check_flags(delay_value=delay_value)  # under its name here
        is_one = not hasattr(value_network, "modules") or members_of(value_network) is None
        super().__init__(
            actor_network,
            [value_network] if is_one else value_network,
            num_qvalue_nets=1,
            loss_function=loss_function,
            delay_actor=delay_actor,
            delay_qvalue=delay_value,
            **settings,
        )
        self._value_next_states(self._state_value)

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_actor", "loss_value", "pred_value", "target_value"]

    def _state_value(self, rows: TensorDictBase) -> Tensor:
        """The value of states by what the actor does there."""
        action = chosen(self._next_actor, rows, self.entries["action"])
        values = self._judged(self._next_critics, rows, action)
        check_values(values, self.entries["state_action_value"], action[..., :1])
        return values[..., 0, :]

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        self._check_actions(batch, counted)
        values = self._judged(self.qvalue_network, seen)
        loss = self._critic_loss(batch, values, targets, counted)
        action = chosen(self.actor_network, seen, self.entries["action"])
        gain = kept(self._judged_for_actor(seen, action)[..., 0, :], counted)
        return {
            "loss_actor": -self._reduce(gain, counted),
            "loss_value": loss,
            "pred_value": reduce(values.detach()[..., 0, :], counted),
            "target_value": reduce(targets.value, counted),
        }
