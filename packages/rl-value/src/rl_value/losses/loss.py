"""Base class of losses: keys, masks, value estimators and target networks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from copy import deepcopy
from enum import Enum
from typing import Any, get_args

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl_tensordict import NestedKey, UnfitValue, as_tuple, build, find, require
from rl_tensordict.arguments import check_choice, check_type, drop_useless, refuse_unknown
from rl_value.arguments import floats
from rl_value.counted_steps import counted_steps, readable, refuse_flags_of_others
from rl_value.dispatch import NamedModule, check_tensordict
from rl_value.estimators import (
    GAE,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    ValueEstimator,
    VTrace,
)
from rl_value.estimators.explanation import described
from rl_value.estimators.key_map import KeyMap, check_key
from rl_value.losses.finite_check import is_nothing, not_finite, reason_of
from rl_value.masked_means import Reduction, reduce
from rl_value.networks import explain_call, explain_distribution


class ValueEstimators(Enum):
    """The kinds of value estimator that a loss can make for itself.

    Example:
        >>> ValueEstimators.GAE.value
        'gae'
    """

    TD0 = "td0"
    TD1 = "td1"
    TDLambda = "td_lambda"
    GAE = "gae"
    VTrace = "vtrace"


MOVED = {
    "gamma": "make_value_estimator(gamma=...)",
    "entropy_coef": "entropy_coeff",
    "critic_coef": "critic_coeff",
    "advantage_key": "set_keys(advantage=...)",
    "value_target_key": "set_keys(value_target=...)",
    "value_key": "set_keys(value=...)",
    "priority_key": "set_keys(priority=...)",
}
USELESS = {
    "functional": "parameters are the networks' own either way",
    "device": "everything is computed on the device of the data",
    "deactivate_vmap": "",  # scripts for TorchRL pass it, and networks are never called so
}
MAKERS: dict[ValueEstimators, tuple[type[ValueEstimator], dict[str, Any]]] = {
    ValueEstimators.TD0: (TD0Estimator, {"gamma": 0.99}),
    ValueEstimators.TD1: (TD1Estimator, {"gamma": 0.99}),
    ValueEstimators.TDLambda: (TDLambdaEstimator, {"gamma": 0.99, "lmbda": 0.95}),
    ValueEstimators.GAE: (GAE, {"gamma": 0.99, "lmbda": 0.95}),
    ValueEstimators.VTrace: (VTrace, {"gamma": 0.99}),
}
ESTIMATOR_ENTRIES = tuple(KeyMap.of())  # those of an estimator, which a loss has too


class LossModule(NamedModule):
    """A loss of a batch: a tensordict of scalars whose ``loss_*`` entries are to be added up.

    Networks are submodules, so that `parameters`, `state_dict`, `torch.func.functional_call` and
    `torch.compile` see them as they are; ``<network>_params`` are the same parameters as a
    tensordict. Networks are called in recurrent mode. Means and statistics are over the steps
    that count: real ones, that have a next observation or terminated, that show what the policy
    saw, and that ``"shifted_valid"`` does not exclude. Where rewards and flags are those of a
    group, as ``set_keys(terminated=("agents", "terminated"))`` says, members that are out do not
    count: members that are done at the root, or False in the group's ``"mask"``. Members that wait
    for their turn (True in the group's ``"waiting"``) count for values, and not for an actor.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        loss_mask_key: ``"auto"`` as above; another key for that flag alone; None for all steps.
        check_finite: raise where a loss is NaN or infinite. By default on the CPU alone, where that
            is one number to read; True waits for a device too, False never looks. Losses step by
            step, of ``reduction="none"``, and compiled code are not looked at.
        entries: default keys of the loss, in addition to those of value estimators.

    Raises:
        ValueError: there is no such reduction, or `loss_mask_key` is no key.
        TypeError: `check_finite` is neither a flag nor None.
    """

    _has_warned = False
    default_estimator = ValueEstimators.GAE
    actor_method = "forward"  # what the loss calls of an actor: this, or get_dist
    estimators: tuple[ValueEstimators, ...] = tuple(ValueEstimators)

    def __init__(
        self,
        *,
        reduction: Reduction | None = None,
        loss_mask_key: NestedKey | None = "auto",
        check_finite: bool | None = None,
        **entries: NestedKey,
    ) -> None:
        super().__init__()
        self.reduction: Reduction = "mean" if reduction is None else reduction
        check_choice("reduction", self.reduction, get_args(Reduction))
        if loss_mask_key is not None:
            check_key("loss_mask_key", loss_mask_key)
        self.loss_mask_key = loss_mask_key
        check_type("check_finite", check_finite, bool | None, "True, False or None")
        self.check_finite = check_finite
        self.entries = KeyMap.of(action="action", **entries)
        self._estimator: ValueEstimator | None = None

    def value_network_of(self) -> TensorDictModuleBase | None:
        """The network that gives an estimator its values; None if there is none."""
        return None

    @property
    def tensor_keys(self) -> KeyMap:
        """The keys that `set_keys` sets, by role, as ``tensor_keys.advantage``."""
        return self.entries

    def set_keys(self, **entries: NestedKey | None) -> None:
        """Give entries other names, here and in the value estimator.

        Args:
            entries: a key for each purpose. What is under ``"next"`` is named as at the root.

        Raises:
            KeyError: there is no such entry.
            ValueError: a key is neither a string nor a tuple of strings.
        """
        self.entries.set(**entries)
        if self._estimator is not None:
            self._tell(self._estimator)

    def make_value_estimator(
        self, value_type: ValueEstimators | str | None = None, **settings: Any
    ) -> LossModule:
        """Choose the estimator of advantages and targets.

        Args:
            value_type: the kind, or its name; by default the loss's own.
            settings: what the estimator takes, as ``gamma`` and ``lmbda``.

        Returns:
            The loss.

        Raises:
            KeyError: there is no estimator of that name.
            TypeError: the kind is neither a `ValueEstimators` nor a string.
            NotImplementedError: this loss cannot use that kind.
            ValueError: ``shifted=True``, and next states are valued by another network.
        """
        if settings.get("shifted") and any(
            n.startswith("target_") for n, _ in self.named_children()
        ):
            msg = "shifted=True reads values and next values at once, and delay_value=True values "
            msg += "next states with another network. Set one of them to False."
            raise ValueError(msg)
        kind = _kind(self.default_estimator if value_type is None else value_type)
        if kind not in self.estimators:
            msg = f"{type(self).__name__} cannot use {kind.name}: {_names(self.estimators)}."
            raise NotImplementedError(msg)
        maker, defaults = MAKERS[kind]
        if kind is ValueEstimators.VTrace:
            defaults = {**defaults, "actor_network": self.actor_network}
        network = self.value_network_of()
        made = maker(**{**defaults, "value_network": network, **settings})
        self._tell(made)
        object.__setattr__(self, "_estimator", made)  # its networks are registered here already
        return self

    def _tell(self, estimator: ValueEstimator) -> None:
        estimator.entries.set(**{name: self.entries[name] for name in ESTIMATOR_ENTRIES})
        if isinstance(estimator, VTrace):
            estimator.action_key = self.entries["action"]

    @property
    def value_estimator(self) -> ValueEstimator:
        """The estimator of advantages and targets; the default one until another is made."""
        if self._estimator is None:
            self.make_value_estimator()
        made = self._estimator
        assert made is not None  # made above
        return made

    def _warn_of_default(self) -> None:
        """Say that a target is not made as the advantage was that is stored."""
        used = self.value_estimator
        msg = (
            f"{self.entries['advantage']!r} is stored and {self.entries['value_target']!r} is "
            f"missing: it is estimated by the default, {type(used).__name__} with "
            f"gamma={used.gamma}, lmbda={getattr(used, 'lmbda', None)}. Store both, "
            "or call make_value_estimator(...) with the settings of the advantage."
        )
        warnings.warn(msg, UserWarning, stacklevel=3)

    def _warn_of_nothing(self, batch: TensorDictBase) -> None:
        """Say once that no step of a batch counts."""
        counted = self.counted(batch)
        if self._has_warned or counted is None or bool(counted.any()):
            return
        self._has_warned = True
        key = "" if self.loss_mask_key == "auto" else f" {self.loss_mask_key!r} is False in all."
        msg = (
            f"{type(self).__name__}: no step of this batch counts, of {counted.numel()}, so the "
            f"loss is 0 and nothing is learned.{key} Steps without a next observation, padding, "
            "and steps burnt in are left out: explain(batch) says which."
        )
        warnings.warn(msg, UserWarning, stacklevel=4)

    def counted(self, batch: TensorDictBase) -> Tensor | None:
        """Steps that the loss is about, bool ``[*B, T]`` or ``[*B, T, *G]``; None if all are."""
        check_tensordict(batch)
        terminated, done = self.entries["terminated"], self.entries["done"]
        refuse_flags_of_others(batch, self.entries["advantage"], terminated)
        return counted_steps(batch, self.loss_mask_key, terminated, done)

    def explain(self, tensordict: TensorDictBase) -> str:
        """Say which way a batch takes, and why; nothing is computed or written.

        Args:
            tensordict: a TED batch ``[*B, T]``.

        Returns:
            A few lines: which steps count, how networks are called, where targets come from, and
            what compiled code does.

        Raises:
            KeyError: an entry is missing.
            TypeError: an entry has the wrong dtype, or the batch is no tensordict.
            ValueError: an entry has the wrong shape.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> from rl_value import DQNLoss
            >>> from tensordict.nn import TensorDictModule
            >>> net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
            >>> said = DQNLoss(net, action_space="categorical").explain(trajectories([3, 4]))
            >>> said.splitlines()[:2]
            ['DQNLoss', '  steps: 7 of 7 count']
        """
        counted = self.counted(tensordict)
        whole = tensordict.batch_size.numel() if counted is None else counted.numel()
        number = whole if counted is None else int(counted.sum())
        lines = [f"steps: {number} of {whole} count", *self._explain_networks()]
        return described(type(self).__name__, [*lines, *self._explain(tensordict)])

    def _explain_networks(self) -> Iterator[str]:
        """How each network is called, in lines."""
        for name, network in self.named_children():
            if not isinstance(network, TensorDictModuleBase):
                continue
            is_drawn_from = self.actor_method == "get_dist" and name.endswith("actor_network")
            said = explain_distribution(network) if is_drawn_from else explain_call(network)
            yield f"{name.removesuffix('_network')}: {said}"

    def _explain(self, batch: TensorDictBase) -> list[str]:
        """What this kind of loss says of a batch, in lines."""
        return []

    def _seen(
        self,
        batch: TensorDictBase,
        *networks: TensorDictModuleBase | None,
        more: Iterable[NestedKey] = (),
    ) -> TensorDictBase:
        """The batch as networks and distributions read it."""
        return readable(batch, *networks, more=more) if self.loss_mask_key == "auto" else batch

    def _reduce(self, values: Tensor, counted: Tensor | None) -> Tensor:
        return reduce(values, counted, self.reduction)

    def _collected(self, results: dict[str, Tensor], batch: TensorDictBase) -> TensorDict:
        """Losses and statistics of a batch: the selected ones, in their order, or all."""
        bad = [] if self.check_finite is False else not_finite(results, bool(self.check_finite))
        if bad:
            counted = self.counted(batch)
            reason = reason_of(batch, self.in_keys, self.optional_keys, counted, self)
            msg = f"{type(self).__name__}: {', '.join(bad)} is NaN or infinite: {reason}. "
            raise UnfitValue(msg + "check_finite=False lets it pass.")
        if self.check_finite is not False and is_nothing(results):
            self._warn_of_nothing(batch)
        if self._selected is not None:
            results = {key: results[key] for key in self._selected if isinstance(key, str)}
        return build(results, torch.Size([]))


def stored_weight(batch: TensorDictBase, key: NestedKey, asked: bool | str) -> Tensor | None:
    """The weight of each step; None if none is asked for, or ``"auto"`` finds none."""
    if asked is False:
        return None
    weight = find(batch, as_tuple(key)) if asked == "auto" else require(batch, key)
    return None if weight is None else floats(weight, key)


def delayed(network: TensorDictModuleBase) -> TensorDictModuleBase:
    """Copy a network as a target network: the same values, no gradients."""
    if any(is_lazy(one) for one in network.parameters()):
        msg = (
            "the network has lazy layers, whose sizes are not known yet: call it once, as "
            "env.rollout(1, policy) does, before it is given to a loss or an optimizer."
        )
        raise ValueError(msg)
    return deepcopy(network).requires_grad_(False)


def parameters_of(network: nn.Module | None) -> TensorDictParams | None:
    """The parameters and buffers of a network as a tensordict; they stay the network's own."""
    if network is None:
        return None
    return TensorDictParams(TensorDict.from_module(network), no_convert=True)


def _kind(given: Any) -> ValueEstimators:
    if isinstance(given, ValueEstimators):
        return given
    if not isinstance(given, str):
        msg = f"value_type: expected a ValueEstimators, got {type(given).__name__}."
        raise TypeError(msg)
    for kind in ValueEstimators:
        if given.lower().replace("_", "") in (kind.name.lower(), kind.value.replace("_", "")):
            return kind
    msg = f"there is no value estimator {given!r}: {_names(tuple(ValueEstimators))}."
    raise KeyError(msg)


def _names(kinds: tuple[ValueEstimators, ...]) -> str:
    return f"expected one of {', '.join(kind.name for kind in kinds)}"


def refuse_moved(given: dict[str, Any]) -> None:
    """Raise for arguments that a loss does not take, and name the call that does."""
    refuse_unknown(
        drop_useless(given, USELESS), {name: f"Use {call}." for name, call in MOVED.items()}
    )
