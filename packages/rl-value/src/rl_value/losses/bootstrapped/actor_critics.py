"""Base class of the losses of an actor and critics of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import refuse_shared_states
from rl_tensordict.arguments import check_choice, check_flags
from rl_value.losses.bootstrapped.action_space import (
    actions_of,
    bounds_of,
    refuse_outside,
    spec_of,
)
from rl_value.losses.bootstrapped.critics import (
    action_values,
    check_values,
    critics_of,
    refuse_memory_of_actions,
    value_key_of,
)
from rl_value.losses.bootstrapped.loss import BootstrappedLoss
from rl_value.losses.bootstrapped.state_value import StateValue
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.loss import delayed, parameters_of
from rl_value.losses.regression import DISTANCES
from rl_value.networks import held_out, require_network


class ActorCriticsLoss(BootstrappedLoss):
    """A loss of an actor and of critics that value its actions.

    Args:
        actor_network: writes ``"action"``.
        qvalue_network: writes ``"state_action_value"`` ``[*B, 1]``, or ``[*B, num, 1]`` where it
            is an ensemble; or a list of critics of one architecture.
        num_qvalue_nets: how many critics to make of one that is given, with parameters drawn
            anew; by default `num_critics` of the class.
        loss_function: ``"l1"``, ``"l2"`` or ``"smooth_l1"``.
        action_spec: spec of the action, or a composite that holds it; by default the actor's.
        delay_actor: choose next actions by a copy of the actor that `SoftUpdate` moves.
        delay_qvalue: value next states by a copy of the critics that `SoftUpdate` moves.
        settings: what `BootstrappedLoss` takes besides.

    Example:
        >>> from rl_value import DDPGLoss, SACLoss
        >>> all(issubclass(kind, ActorCriticsLoss) for kind in (DDPGLoss, SACLoss))
        True
    """

    num_critics = 2

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        num_qvalue_nets: int | None = None,
        loss_function: str = "smooth_l1",
        action_spec: Any = None,
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(entries={"state_action_value": "state_action_value"}, **settings)
        require_network("actor_network", actor_network, self.actor_method)
        check_flags(delay_actor=delay_actor, delay_qvalue=delay_qvalue)
        check_choice("loss_function", loss_function, [*DISTANCES])
        self.loss_function = loss_function
        self.actor_network = actor_network
        self.qvalue_network = critics_of(qvalue_network, num_qvalue_nets, self.num_critics)
        self.target_actor_network = delayed(actor_network) if delay_actor else None
        self.target_qvalue_network = delayed(self.qvalue_network) if delay_qvalue else None
        networks = {"actor_network": actor_network, "qvalue_network": self.qvalue_network}
        refuse_shared_states(networks)
        for action in actions_of(actor_network, self.entries["action"]):
            refuse_memory_of_actions(self.qvalue_network, action)
        self.entries.set(state_action_value=value_key_of(self.qvalue_network))
        self.spec = spec_of(action_spec, actor_network, self.entries["action"])
        self.bounds = bounds_of(self.spec)

    @property
    def actor_network_params(self) -> TensorDictParams | None:
        """The parameters of the actor as a tensordict."""
        return parameters_of(self.actor_network)

    @property
    def qvalue_network_params(self) -> TensorDictParams | None:
        """The parameters of the critics as a tensordict."""
        return parameters_of(self.qvalue_network)

    @property
    def target_actor_network_params(self) -> TensorDictParams | None:
        """The parameters of the actor of next states as a tensordict."""
        return parameters_of(self._next_actor)

    @property
    def target_qvalue_network_params(self) -> TensorDictParams | None:
        """The parameters of the critics of next states as a tensordict."""
        return parameters_of(self._next_critics)

    @property
    def _next_actor(self) -> TensorDictModuleBase:
        late = self.target_actor_network
        return self.actor_network if late is None else late

    @property
    def _next_critics(self) -> TensorDictModuleBase:
        late = self.target_qvalue_network
        return self.qvalue_network if late is None else late

    def _value_next_states(self, value_of: Callable[[TensorDictBase], Tensor]) -> None:
        """Take targets from values of next states, by the actor and the critics of these."""
        self._prepare(StateValue([self._next_actor, self._next_critics], value_of))

    def _networks(self) -> list[TensorDictModuleBase]:
        return [self.actor_network, self.qvalue_network]

    def _judged(
        self, critics: TensorDictModuleBase, rows: TensorDictBase, action: Tensor | None = None
    ) -> Tensor:
        """What critics say of an action, by default the one that was taken."""
        given = None if action is None else (self.entries["action"], action)
        return action_values(critics, rows, given, self.entries["state_action_value"])

    def _judged_for_actor(self, seen: TensorDictBase, action: Tensor) -> Tensor:
        """What the critics say of an action, with no gradient to them."""
        with held_out(self.qvalue_network):
            return self._judged(self.qvalue_network, seen, action)

    def _check_actions(self, batch: TensorDictBase, counted: Tensor | None) -> None:
        """Raise for stored actions that the spec does not have."""
        if self.bounds is not None and self.check_finite is not False:
            refuse_outside(batch, self.entries["action"], self.bounds, counted)

    def _critic_loss(
        self, batch: TensorDictBase, values: Tensor, targets: Targets, counted: Tensor | None
    ) -> Tensor:
        """The distance of what critics say of the actions that were taken from their targets."""
        check_values(values, self.entries["state_action_value"], targets.value)
        return self._regression(batch, values, targets, counted)
