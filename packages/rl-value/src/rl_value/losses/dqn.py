"""Deep Q-learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl_layout import refuse_shared_states
from rl_tensordict import NestedKey, copied, require
from rl_tensordict.arguments import check_choice, check_flags
from rl_value.actions import of_action
from rl_value.estimators.transitions import Transitions, UnrolledValues
from rl_value.losses.bootstrapped.action_space import refuse_no_choice
from rl_value.losses.bootstrapped.loss import BootstrappedLoss
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.loss import delayed, parameters_of
from rl_value.losses.regression import DISTANCES
from rl_value.masked_means import Reduction
from rl_value.networks import noted, require_network

SPACES = ("one_hot", "categorical")


class DQNLoss(BootstrappedLoss):
    """The distance of action values from bootstrapped targets.

    The target is r + γ max Q'(s', ·), Q' the target network; with `double_dqn` it is
    r + γ Q'(s', argmax Q(s', ·)). Other estimators than TD0 take that value in the place of
    V(s'). Next values come from one unroll, exact for recurrent networks. Written is ``loss``,
    and into the batch ``"td_error"``, the squared error of each step ``[*B, T, 1]``.
    (Mnih et al., Nature 518, 2015; van Hasselt et al., arXiv:1509.06461.)

    Args:
        value_network: writes ``"action_value"`` ``[*B, T, n]``. Where it also writes
            ``"chosen_action_value"`` and the action, its own choices are taken, masks included.
        loss_function: ``"l1"``, ``"l2"`` or ``"smooth_l1"``.
        delay_value: value next states with a copy of the network that `SoftUpdate` moves.
        double_dqn: choose next actions with the network itself.
        action_space: ``"one_hot"`` or ``"categorical"``; by default what the network says.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        use_prioritized_weights: weigh steps by ``"priority_weight"``: ``"auto"`` if it is stored.
        loss_mask_key: which steps count, see `LossModule`.
        check_finite: raise where the loss is NaN or infinite, see `LossModule`.
        moved: ``functional`` and ``device``, which have no effect and are deprecated; and
            arguments that are given elsewhere.

    Raises:
        ValueError: the action space is not known, `double_dqn` is without `delay_value`, or two
            modules of the network carry their recurrent states under one key.
        TypeError: an argument belongs elsewhere.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1)
        >>> DQNLoss(net, action_space="categorical")(batch)["loss"].shape
        torch.Size([])
        >>> batch["td_error"].shape
        torch.Size([7, 1])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        value_network: TensorDictModuleBase,
        *,
        loss_function: str = "l2",
        delay_value: bool = True,
        double_dqn: bool = False,
        action_space: Any = None,
        reduction: Reduction | None = None,
        use_prioritized_weights: bool | Literal["auto"] = "auto",
        loss_mask_key: NestedKey | None = "auto",
        check_finite: bool | None = None,
        **moved: Any,
    ) -> None:
        super().__init__(
            reduction=reduction,
            loss_mask_key=loss_mask_key,
            check_finite=check_finite,
            use_prioritized_weights=use_prioritized_weights,
            entries={
                "action_value": "action_value",
                "chosen_action_value": "chosen_action_value",
            },
            **moved,
        )
        require_network("value_network", value_network)
        refuse_shared_states({"value_network": value_network})
        check_flags(double_dqn=double_dqn, delay_value=delay_value)
        if double_dqn and not delay_value:
            msg = "double_dqn=True chooses with one network and values with another: it needs "
            msg += "delay_value=True."
            raise ValueError(msg)
        check_choice("loss_function", loss_function, [*DISTANCES])
        self.value_network = value_network
        self.target_value_network = delayed(value_network) if delay_value else None
        self.loss_function = loss_function
        self.double_dqn = double_dqn
        self.action_space = action_space_of(action_space, value_network)
        self._prepare(self._next_network)

    @property
    def value_network_params(self) -> TensorDictParams | None:
        """The parameters of the network as a tensordict."""
        return parameters_of(self.value_network)

    @property
    def target_value_network_params(self) -> TensorDictParams | None:
        """The parameters that next states are valued with."""
        return parameters_of(self._next_network)

    @property
    def _next_network(self) -> TensorDictModuleBase:
        late = self.target_value_network
        return self.value_network if late is None else late

    @property
    def outputs(self) -> list[NestedKey]:
        """The name of the loss."""
        return ["loss"]

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """The loss, by the values of the actions that were taken."""
        out = noted(self.value_network, copied(seen))
        values = require(out, self.entries["action_value"])
        key = self.entries["action"]
        chosen = of_action(values, stored_index(seen, key, values, self.action_space, counted), key)
        return {"loss": self._regression(batch, chosen, targets, counted)}

    def _networks(self) -> list[TensorDictModuleBase]:
        return [self.value_network]

    def _second_call(self) -> str:
        return "the network itself chooses next actions" if self.double_dqn else ""

    def _next_values(self, steps: Transitions) -> UnrolledValues:
        """The value of each step's next state by the target network."""
        network = self._next_network
        values, best = self.entries["action_value"], self.entries["chosen_action_value"]
        chooses = best in network.out_keys and self.entries["action"] in network.out_keys
        if not self.double_dqn:
            found = self._unroll(network, steps, best if chooses else values)
            if chooses:
                return found
            return replace(found, following=found.following.amax(-1, keepdim=True))
        found = self._unroll(network, steps, values)
        wanted = self.entries["action"] if chooses else values
        choice = self._unroll(self.value_network, steps, wanted).following
        if chooses:
            index = action_index(choice, found.following, self.action_space)
        else:
            index = choice.argmax(-1, keepdim=True)
        chosen = found.following.gather(-1, index)
        allowed = self._allowed_next(steps)
        if allowed is not None:
            chosen = chosen.masked_fill(~allowed.any(-1, keepdim=True), torch.nan)
        return replace(found, following=chosen)

    def _allowed_next(self, steps: Transitions) -> Tensor | None:
        """Which actions each step's next state allows, bool ``[M, n]``; None without a mask."""
        key = mask_key_of(self.value_network)
        if key is None:
            return None
        same = TensorDictModule(nn.Identity(), [key], [key])
        return self._unroll(same, steps, key).following.bool()


def mask_key_of(network: TensorDictModuleBase) -> NestedKey | None:
    """Where a network reads which actions are allowed; None if all are."""
    keys = (getattr(module, "action_mask_key", None) for module in network.modules())
    return next((key for key in keys if key is not None), None)


def stored_index(
    seen: TensorDictBase, key: NestedKey, values: Tensor, space: str, counted: Tensor | None
) -> Tensor:
    """Number of the stored action of each step, int64 ``[*B, T, 1]``; raises if it chooses none."""
    action = require(seen, key)
    index = action_index(action, values, space)
    if space == "one_hot":
        refuse_no_choice(action, key, counted)
    return index


def action_index(action: Tensor, values: Tensor, space: str) -> Tensor:
    """Number of the action of each step, int64 ``[*B, T, 1]``."""
    if space == "one_hot" and action.shape == values.shape:
        return action.to(torch.int64).argmax(-1, keepdim=True)
    if space == "categorical" and action.is_floating_point():
        msg = f"action: expected integers as categorical, got {action.dtype}. Set action_space."
        raise TypeError(msg)
    if space == "categorical" and action.shape == values.shape[:-1]:
        return action.to(torch.int64).unsqueeze(-1)
    if space == "categorical" and action.shape == (*values.shape[:-1], 1):
        return action.to(torch.int64)
    expected = list(values.shape if space == "one_hot" else values.shape[:-1])
    msg = f"action: expected {expected} as {space}, got {list(action.shape)}. Set action_space."
    raise ValueError(msg)


def action_space_of(given: Any, network: TensorDictModuleBase) -> str:
    """How actions are written, as it is said by an argument, a spec or a network."""
    said = getattr(network, "action_space", None) if given is None else given
    name = said if isinstance(said, str) else type(said).__name__
    plain = {"OneHot": "one_hot", "Categorical": "categorical"}.get(name, name.replace("-", "_"))
    if plain not in SPACES:
        got = "nothing" if said is None else repr(said)
        msg = f"action_space: expected {' or '.join(SPACES)}, got {got}. Pass action_space=."
        raise ValueError(msg)
    return plain
