"""Base class of losses whose targets come from values of next states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys, set_recurrent_mode
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, UnknownName, as_key, as_tuple, find
from rl_tensordict.arguments import check_choice, check_type
from rl_value.arguments import floats
from rl_value.dispatch import check_tensordict
from rl_value.estimators.bootstrapping.next_alone import unroll_next
from rl_value.estimators.bootstrapping.next_values import roles_of
from rl_value.estimators.explanation import (
    compiled_line,
    left_out_line,
    segments_line,
    values_line,
)
from rl_value.estimators.static_shapes import StaticTransitions, unroll_rows
from rl_value.estimators.transitions import Transitions, UnrolledValues
from rl_value.losses.bootstrapped.state_value import VALUE
from rl_value.losses.bootstrapped.targets import Targets, TargetSource, returns_of
from rl_value.losses.loss import LossModule, ValueEstimators, refuse_moved, stored_weight
from rl_value.losses.regression import distance
from rl_value.masked_means import Reduction, kept, reduce
from rl_value.single_rows import warn_of_single_rows


class BootstrappedLoss(LossModule):
    """A loss of values that are drawn towards bootstrapped targets.

    `targets` writes the targets of a whole batch, which losses of its parts then read; without
    them `forward` computes them. Both leave the steps without a target out.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        use_prioritized_weights: weigh steps by ``"priority_weight"``: ``"auto"`` if it is stored.
        loss_mask_key: which steps count, see `LossModule`.
        check_finite: raise where a loss is NaN or infinite, see `LossModule`.
        entries: default keys of the loss, in addition to those of value estimators.
        moved: ``functional`` and ``device``, which have no effect and are deprecated; and
            arguments that are given elsewhere.

    Raises:
        TypeError: an argument belongs elsewhere.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from rl_value import DQNLoss
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1) % 3
        >>> loss = DQNLoss(net, action_space="categorical")
        >>> loss.targets(batch)["action_value_target"].shape
        torch.Size([7, 1])
        >>> parts = [loss(part)["loss"] for part in batch.split(4)]  # reads these
    """

    default_estimator = ValueEstimators.TD0
    estimators = (ValueEstimators.TD0, ValueEstimators.TD1, ValueEstimators.TDLambda)
    loss_function = "l2"
    _following: TensorDictModuleBase

    def __init__(
        self,
        *,
        reduction: Reduction | None = None,
        use_prioritized_weights: bool | Literal["auto"] = "auto",
        loss_mask_key: NestedKey | None = "auto",
        check_finite: bool | None = None,
        entries: Mapping[str, NestedKey] | None = None,
        **moved: Any,
    ) -> None:
        refuse_moved(moved)
        check_type("entries", entries, Mapping | None, "keys by role, or None")
        super().__init__(
            reduction=reduction,
            loss_mask_key=loss_mask_key,
            check_finite=check_finite,
            target="action_value_target",
            priority="td_error",
            priority_weight=keys.PRIORITY_WEIGHT,
            **(entries or {}),
        )
        check_choice("use_prioritized_weights", use_prioritized_weights, [True, False, "auto"])
        self.use_prioritized_weights = use_prioritized_weights

    def _prepare(self, following: TensorDictModuleBase) -> None:
        """Take the network that values next states, and make the estimator.

        This is done once, since compiled code cannot do it.
        """
        object.__setattr__(self, "_following", following)  # its parts are registered here already
        self._roles = roles_of(following)
        networks = self._networks()
        self._has_states = any(roles_of(one).states for one in networks)
        # where a state is missing, the call that needs it says who would have written it
        self._read = dict.fromkeys(key for one in networks for key in roles_of(one).observed)
        LossModule.make_value_estimator(self)

    @abstractmethod
    def _networks(self) -> list[TensorDictModuleBase]:
        """The networks that are called on the steps of a batch."""

    def _next_values(self, steps: Transitions) -> UnrolledValues:
        """The value of each step's next state."""
        return self._unroll(self._following, steps, VALUE)

    @abstractmethod
    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """Losses and statistics; `seen` is the batch as networks may read it."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads: observations, action, reward and flags."""
        flags = [next_key(self.entries[name]) for name in ("reward", "done", "terminated")]
        observed = [key for network in self._networks() for key in network.in_keys]
        known = [self.entries["action"], *flags, *observed]
        return list(dict.fromkeys([*known, *map(as_key, self._roles.following)]))

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords: markers, weights, stored targets."""
        more = [self.entries["priority_weight"], self.entries["target"]]
        return [*super().optional_keys, *more]

    def forward(
        self, tensordict: TensorDictBase | None = None, *tensors: Tensor, **named: Tensor
    ) -> TensorDictBase:
        """Compute the losses of a batch, and write the error of each step to it.

        Args:
            tensordict: a TED batch ``[*B, T]``. Where it holds ``"action_value_target"``, as
                `targets` writes it, these are its targets.
            tensors: in its place tensors in the order of `in_keys`.
            named: tensors by name, as ``next_reward`` for ``("next", "reward")``.

        Returns:
            Losses and statistics, scalars; with ``reduction="none"`` losses are ``[*B, T, 1]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: a shape does not fit, or a loss is not finite, see `check_finite`.
        """
        if tensors or named or not isinstance(tensordict, TensorDictBase):
            made: TensorDictBase = self.by_names((tensordict, *tensors), named)
            return made
        self._check_read(tensordict)
        found = self._found_targets(tensordict)
        counted = self.counted(tensordict)  # targets may have found next states missing
        with set_recurrent_mode(True):
            seen = self._seen(tensordict, *self._networks(), more=[self.entries["action"]])
            terms = self._terms(tensordict, seen, found, counted)
        return self._collected(terms, tensordict)

    def targets(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the targets of a whole batch, which `forward` then reads in it and in its parts.

        Args:
            tensordict: a TED batch ``[*B, T]``; ``"action_value_target"`` is written to it, NaN in
                steps that have no target and do not count.

        Returns:
            The batch.

        Raises:
            KeyError: an entry is missing.
            ValueError: a shape does not fit.
        """
        self._check_read(tensordict)
        with torch.no_grad():
            value, unknown, _ = self._new_targets(tensordict)
        if unknown is not None:
            wide = unknown.view(*unknown.shape, *(1,) * (value.ndim - unknown.ndim))
            value = value.masked_fill(wide, torch.nan)
        tensordict.set(self.entries["target"], value)
        return tensordict

    def _found_targets(self, batch: TensorDictBase) -> Targets:
        """Stored targets, or computed ones."""
        key = self.entries["target"]
        stored = find(batch, as_tuple(key))
        return self._new_targets(batch) if stored is None else Targets(floats(stored, key), None)

    def _new_targets(self, batch: TensorDictBase) -> Targets:
        """Computed targets, of a batch that has rewards and flags."""
        for either in (("reward",), ("terminated", "done")):
            names = [next_key(self.entries[name]) for name in either]
            if all(find(batch, as_tuple(key)) is None for key in names):
                self._refuse_without(names[0], batch)
        return self._targets(batch)

    def _targets(self, batch: TensorDictBase) -> Targets:
        if self._has_states:
            warn_of_single_rows(batch)
        return self._source.of(batch, self._unrolled)

    @property
    def _source(self) -> TargetSource:
        return TargetSource(self.entries, self.value_estimator, self._roles.is_row_wise)

    def _unrolled(self, steps: Transitions) -> tuple[Tensor, UnrolledValues]:
        """The target of each step ``[M, ...]``, and the values that it is made of."""
        return returns_of(self.value_estimator, steps, self._next_values(steps))

    def _unroll(
        self, network: TensorDictModuleBase, steps: Transitions, wanted: NestedKey
    ) -> UnrolledValues:
        """The output of a network at each step's next state."""
        if isinstance(steps, StaticTransitions):
            return unroll_rows(network, self._roles, steps, wanted)
        return unroll_next(network, steps, wanted, self.value_estimator.calls)

    def _regression(
        self, batch: TensorDictBase, values: Tensor, targets: Targets, counted: Tensor | None
    ) -> Tensor:
        """The distance of values from targets; writes the largest squared error of each step.

        Values are ``[*B, T, 1]``, or ``[*B, T, num, 1]`` of several critics, whose distances are
        added up.
        """
        target, unknown = targets.value, targets.unknown
        extra = values.ndim - target.ndim
        if extra:
            target = target.unsqueeze(-2)
            unknown = None if unknown is None else unknown.unsqueeze(-2)
            target = target.expand_as(values)
        target = target.to(values.dtype)
        if unknown is not None:
            target = torch.where(unknown, values.detach(), target)
        values, target = kept(values, counted), kept(target, counted)
        error = (values - target).detach().square()
        found = distance(values, target, self.loss_function)
        if extra:
            error, found = error.amax(-2), found.sum(-2)
        batch.set(self.entries["priority"], error)
        return reduce(found, counted, self.reduction, self._weight(batch, found))

    def _weight(self, batch: TensorDictBase, values: Tensor) -> Tensor | None:
        """The weight of each step; that of a row counts for each of its members."""
        weight = stored_weight(batch, self.entries["priority_weight"], self.use_prioritized_weights)
        members = values.shape[batch.ndim : -1]
        if weight is not None and members and weight.numel() == batch.numel():
            return weight.reshape(*batch.shape, *(1,) * len(members)).expand(values.shape[:-1])
        return weight

    def _check_read(self, batch: TensorDictBase) -> None:
        """Raise for the first entry at the root that is missing, with all that is read."""
        check_tensordict(batch)
        for key in (self.entries["action"], *self._read):
            if find(batch, as_tuple(key)) is None:
                break
        else:
            return
        self._refuse_without(key, batch)

    def _refuse_without(self, key: NestedKey, batch: TensorDictBase) -> NoReturn:
        msg = f"{key!r} is missing. {type(self).__name__} reads {self.in_keys}; the batch has "
        raise UnknownName(msg + f"{list(batch.keys(True, True))}.")

    def _explain(self, batch: TensorDictBase) -> list[str]:
        source = self._source
        if find(batch, as_tuple(self.entries["target"])) is not None:
            stored = f"targets: stored in {self.entries['target']!r}"
            return [stored, compiled_line(is_one_graph=True)]
        steps, calls = source.steps(batch), self.value_estimator.calls
        is_one_graph = source.has_fixed_shape(steps.batch)
        said = values_line(self._following, steps, calls, self._second_call(), next_only=True)
        return [
            segments_line(steps),
            left_out_line(steps, calls.missing_next),
            f"next values: {said}",
            f"scan: {self.value_estimator.explain_scan(steps)}",
            compiled_line(is_one_graph=is_one_graph),
        ]

    def _second_call(self) -> str:
        """Why next states are read twice; empty if they are not."""
        return ""
