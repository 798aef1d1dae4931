"""Implicit Q-learning."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import refuse_shared_states
from rl_tensordict import NestedKey, copied, require
from rl_tensordict.arguments import check_number
from rl_value.actions import distribution_of, log_probability
from rl_value.arguments import check_weights
from rl_value.losses.bootstrapped.actor_critics import ActorCriticsLoss
from rl_value.losses.bootstrapped.critics import check_values
from rl_value.losses.bootstrapped.state_value import StateValue
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.loss import parameters_of
from rl_value.masked_means import kept, reduce
from rl_value.networks import noted, require_network

LARGEST_WEIGHT = 100.0


class IQLLoss(ActorCriticsLoss):
    """Critics that never value an action which is not stored, and an actor that is cloned (IQL).

        value     (1 - τ if u < 0 else τ) u²,          u = minᵢ Q'ᵢ(s, a) - V(s)
        target    r + γ V(s')
        critics   Σᵢ d(Qᵢ(s, a), target)
        actor     -min(exp(β u), 100) log π(a|s)

    τ is `expectile`, β `temperature`. Written are ``loss_actor``, ``loss_qvalue`` and
    ``loss_value``, to be added up, and ``entropy``, -E[log π(a|s)] of the stored actions; into the
    batch ``"td_error"``, the largest squared error of the critics in each step ``[*B, T, 1]``.
    (Kostrikov et al., arXiv:2110.06169.)

    Args:
        actor_network: has ``get_dist``.
        qvalue_network: writes ``"state_action_value"`` ``[*B, 1]``, or ``[*B, num, 1]`` where it
            is an ensemble; or a list of critics of one architecture.
        value_network: writes ``"state_value"`` ``[*B, 1]``.
        temperature: β, how much better actions weigh more.
        expectile: τ in (0, 1); 0.5 is the mean, near 1 the best stored action.
        settings: what `ActorCriticsLoss` takes besides.

    Raises:
        ValueError: a setting is out of range, critics differ in shape, or a recurrent part of
            theirs reads the action.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
        >>> from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
        >>> actor = Sequential(
        ...     TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ...     ProbabilisticTensorDictModule(
        ...         ["logits"], ["action"], distribution_class=torch.distributions.OneHotCategorical
        ...     ),
        ... )
        >>> class Critic(torch.nn.Linear):
        ...     def forward(self, observation, action):
        ...         return super().forward(torch.cat([observation, action], -1))
        >>> critic = TensorDictModule(
        ...     Critic(5, 1), ["observation", "action"], ["state_action_value"]
        ... )
        >>> value = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = torch.eye(3)[torch.arange(7) % 3]
        >>> sorted(IQLLoss(actor, critic, value)(batch).keys())
        ['entropy', 'loss_actor', 'loss_qvalue', 'loss_value']
    """

    actor_method = "get_dist"

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        value_network: TensorDictModuleBase,
        *,
        temperature: float = 1.0,
        expectile: float = 0.5,
        **settings: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, **settings)
        require_network("value_network", value_network)
        check_weights(temperature=temperature)
        check_number("expectile", expectile)
        if not 0 < expectile < 1:
            msg = f"expectile: expected a number between 0 and 1, got {expectile}."
            raise ValueError(msg)
        self.value_network = value_network
        self.temperature, self.expectile = temperature, expectile
        networks = {"actor_network": actor_network, "value_network": value_network}
        refuse_shared_states({**networks, "qvalue_network": self.qvalue_network})
        written = value_network.out_keys
        self.entries.set(value="state_value" if "state_value" in written else written[0])
        self._prepare(StateValue([value_network], self._value))

    @property
    def value_network_params(self) -> TensorDictParams | None:
        """The parameters of the network that values states, as a tensordict."""
        return parameters_of(self.value_network)

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_actor", "loss_qvalue", "loss_value", "entropy"]

    def _networks(self) -> list[TensorDictModuleBase]:
        return [*super()._networks(), self.value_network]

    def _value(self, rows: TensorDictBase) -> Tensor:
        """The value of states."""
        value: Tensor = require(noted(self.value_network, copied(rows)), self.entries["value"])
        return value

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        self._check_actions(batch, counted)
        values = self._judged(self.qvalue_network, seen)
        loss = self._critic_loss(batch, values, targets, counted)
        value = self._value(seen)
        with torch.no_grad():
            slow = self._judged(self._next_critics, seen)
            check_values(slow, self.entries["state_action_value"], value)
        surplus = kept(slow.amin(-2) - value, counted)
        side = torch.where(surplus < 0, 1 - self.expectile, self.expectile)
        dist = distribution_of(self.actor_network, seen)
        log_prob = kept(log_probability(dist, seen, self.entries["action"]).unsqueeze(-1), counted)
        better = (self.temperature * surplus.detach()).exp().clamp(max=LARGEST_WEIGHT)
        return {
            "loss_actor": -self._reduce(better * log_prob, counted),
            "loss_qvalue": loss,
            "loss_value": self._reduce(side * surplus.square(), counted),
            "entropy": -reduce(log_prob.detach(), counted),
        }
