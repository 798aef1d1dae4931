"""Deep Q-learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys, refuse_shared_states, set_recurrent_mode
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_tuple, copied, find, require
from rl_tensordict.arguments import check_choice
from rl_value.actions import of_action
from rl_value.arguments import floats
from rl_value.counted_steps import has_members, under_next
from rl_value.direct_call import check_network, noted
from rl_value.dispatch import takes_names
from rl_value.estimators.bootstrapping.call_config import ValueCallConfig
from rl_value.estimators.bootstrapping.next_values import roles_of, unroll_steps
from rl_value.estimators.explanation import (
    compiled_line,
    left_out_line,
    segments_line,
    values_line,
)
from rl_value.estimators.static_shapes import StaticTransitions, unroll_rows
from rl_value.estimators.time_place import OUTSIDE, time_last
from rl_value.estimators.transitions import (
    Transitions,
    UnrolledValues,
    check_writable,
)
from rl_value.losses.loss import (
    LossModule,
    ValueEstimators,
    delayed,
    parameters_of,
    refuse_moved,
)
from rl_value.losses.regression import DISTANCES, distance
from rl_value.masked_means import Reduction, kept, reduce
from rl_value.single_rows import warn_of_single_rows

SPACES = ("one_hot", "categorical")
DEFAULT_CALLS = ValueCallConfig()


class DQNLoss(LossModule):
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

    default_estimator = ValueEstimators.TD0
    estimators = (ValueEstimators.TD0, ValueEstimators.TD1, ValueEstimators.TDLambda)

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
            action_value="action_value",
            chosen_action_value="chosen_action_value",
            priority="td_error",
            priority_weight=keys.PRIORITY_WEIGHT,
        )
        refuse_moved(moved)
        check_network("value_network", value_network)
        refuse_shared_states({"value_network": value_network})
        if double_dqn and not delay_value:
            msg = "double_dqn=True chooses with one network and values with another: it needs "
            msg += "delay_value=True."
            raise ValueError(msg)
        check_choice("loss_function", loss_function, [*DISTANCES])
        self.value_network = value_network
        self.target_value_network = delayed(value_network) if delay_value else None
        self.loss_function = loss_function
        self.double_dqn = double_dqn
        self.action_space = _space(action_space, value_network)
        self.use_prioritized_weights = use_prioritized_weights
        # this and the estimator are made now, since compiled code cannot make them
        self._roles = roles_of(value_network)
        LossModule.make_value_estimator(self)

    @property
    def value_network_params(self) -> TensorDictParams | None:
        """The parameters of the network as a tensordict."""
        return parameters_of(self.value_network)

    @property
    def target_value_network_params(self) -> TensorDictParams | None:
        """The parameters that next states are valued with."""
        late = self.target_value_network
        return parameters_of(self.value_network if late is None else late)

    def value_network_of(self) -> TensorDictModuleBase | None:
        """None: targets are given their values."""
        return None

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads: observations, action, reward and flags."""
        after = map(next_key, roles_of(self.value_network).observed)
        flags = [next_key(self.entries[name]) for name in ("reward", "done", "terminated")]
        known = [self.entries["action"], *flags, *self.value_network.in_keys]
        return list(dict.fromkeys([*known, *after]))

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords: markers, and weights of steps."""
        return [*super().optional_keys, self.entries["priority_weight"]]

    @property
    def outputs(self) -> list[NestedKey]:
        """The name of the loss."""
        return ["loss"]

    @takes_names
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write the error of each step to it.

        Args:
            tensordict: a TED batch ``[*B, T]``.

        Returns:
            ``loss``, a scalar; with ``reduction="none"`` ``[*B, T, 1]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: a shape does not fit, or the loss is not finite, see `check_finite`.
        """
        target, unknown = self._targets(tensordict)
        counted = self.counted(tensordict)  # targets may have found next states missing
        with set_recurrent_mode(True):
            seen = self._seen(tensordict, self.value_network, more=[self.entries["action"]])
            out = noted(self.value_network, copied(seen))
        values = require(out, self.entries["action_value"])
        index = action_index(require(seen, self.entries["action"]), values, self.action_space)
        chosen = of_action(values, index, self.entries["action"])
        if unknown is not None:
            target = torch.where(unknown, chosen.detach(), target)
        chosen, target = kept(chosen, counted), kept(target, counted)
        tensordict.set(self.entries["priority"], (chosen - target).detach().square())
        weight = self._weight(tensordict, chosen)
        found = distance(chosen, target, self.loss_function)
        return self._collected({"loss": reduce(found, counted, self.reduction, weight)}, tensordict)

    def _targets(self, batch: TensorDictBase) -> tuple[Tensor, Tensor | None]:
        """The target of each step ``[*B, T, ...]``, and a flag of the steps without one.

        Marks in the batch the steps without a target that it does not mark yet.
        """
        check_writable(batch)
        if self._roles.states:
            warn_of_single_rows(batch)
        turned, moved = self._turned(batch)
        if torch.compiler.is_compiling() and self._has_fixed_shape(turned):
            found = self._placed(StaticTransitions.of(turned, self.entries, moved))
        else:
            found = self._outside(turned, moved)
        target, unknown = found.pop("target"), found.pop("unknown", None)
        for key, marker in found.items():
            batch.set(key, marker)
        return target, unknown

    def _turned(self, batch: TensorDictBase) -> tuple[TensorDictBase, int | None]:
        """The batch with time last, and the dimension time had; None if that was the last one."""
        return time_last(batch, self.value_estimator.time_dim)

    def _explain(self, batch: TensorDictBase) -> list[str]:
        turned, moved = self._turned(batch)
        steps, late = Transitions.of(turned, self.entries, moved), self.target_value_network
        network, calls = self.value_network if late is None else late, self.value_estimator.calls
        second = "the network itself chooses next actions" if self.double_dqn else ""
        return [
            segments_line(steps),
            left_out_line(steps, calls.missing_next),
            f"values: {type(self.value_network).__name__}, once on all rows",
            f"next values: {values_line(network, steps, calls, second)}",
            f"scan: {self.value_estimator.explain_scan(steps)}",
            compiled_line(is_one_graph=self._has_fixed_shape(turned)),
        ]

    def _has_fixed_shape(self, batch: TensorDictBase) -> bool:
        """Whether shapes follow from the batch's; slots of n-step rows do not."""
        estimator = self.value_estimator
        plain = estimator.calls == DEFAULT_CALLS and not estimator.average_rewards
        one_step = find(batch, under_next(self.entries["steps_to_next_obs"])) is None
        marked = has_members(batch, self.entries["terminated"], self.entries["done"])
        return plain and not marked and (one_step or self._roles.is_row_wise)

    @torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
    def _outside(self, batch: TensorDictBase, moved: int | None) -> dict[NestedKey, Tensor]:
        return self._placed(Transitions.of(batch, self.entries, moved))

    @torch.no_grad()
    def _placed(self, steps: Transitions) -> dict[NestedKey, Tensor]:
        """Targets, a flag of unknown ones and markers of those steps, in the shape of the batch."""
        target, found = self._target(steps)
        made: dict[NestedKey, Tensor] = {"target": target}
        late = None if found.in_budget is None else steps.widen(~found.in_budget)
        for flag in (found.missing, steps.left_out, found.overwritten, late):
            if flag is not None:
                made["unknown"] = made["unknown"] | flag if "unknown" in made else flag
        if found.in_budget is not None:
            made[keys.SHIFTED_VALID] = found.in_budget
        made |= found.markers(steps)
        return {key: steps.scatter(value) for key, value in made.items()}

    def _target(self, steps: Transitions) -> tuple[Tensor, UnrolledValues]:
        """The target of each step ``[M, *G, C]``, and the values of the next states."""
        found = self._next_values(steps)
        if self.value_estimator.calls.missing_next == "root":
            self.value_estimator.count_substituted(found)
        found = replace(found, now=torch.zeros_like(found.following))
        return self.value_estimator.returns_of(steps, found)[1], found

    def _next_values(self, steps: Transitions) -> UnrolledValues:
        """The value of each step's next state by the target network."""
        late = self.target_value_network
        network = self.value_network if late is None else late
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
        return replace(found, following=found.following.gather(-1, index))

    def _unroll(
        self, network: TensorDictModuleBase, steps: Transitions, wanted: NestedKey
    ) -> UnrolledValues:
        """The output of a network at each step's next state."""
        if isinstance(steps, StaticTransitions):
            return unroll_rows(network, self._roles, steps, wanted)
        return unroll_steps(network, steps, wanted, self.value_estimator.calls)

    def _weight(self, batch: TensorDictBase, values: Tensor) -> Tensor | None:
        """The weight of each step; that of a row counts for each of its members."""
        if self.use_prioritized_weights is False:
            return None
        key = self.entries["priority_weight"]
        auto = self.use_prioritized_weights == "auto"
        weight: Tensor | None = find(batch, as_tuple(key)) if auto else require(batch, key)
        if weight is None:
            return None
        weight = floats(weight, key)
        members = values.shape[batch.ndim : -1]
        if members and weight.numel() == batch.numel():
            return weight.reshape(*batch.shape, *(1,) * len(members)).expand(values.shape[:-1])
        return weight


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


def _space(given: Any, network: TensorDictModuleBase) -> str:
    said = getattr(network, "action_space", None) if given is None else given
    name = said if isinstance(said, str) else type(said).__name__
    plain = {"OneHot": "one_hot", "Categorical": "categorical"}.get(name, name.replace("-", "_"))
    if plain not in SPACES:
        got = "nothing" if said is None else repr(said)
        msg = f"action_space: expected {' or '.join(SPACES)}, got {got}. Pass action_space=."
        raise ValueError(msg)
    return plain
