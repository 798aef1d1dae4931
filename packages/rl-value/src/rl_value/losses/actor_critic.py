"""Base class of the losses of an actor and a critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.distributions import Distribution

from rl_layout import refuse_shared_states, set_recurrent_mode
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, UnfitValue, as_key, as_tuple, find, require
from rl_tensordict.arguments import check_choice, check_flags, check_number, check_whole
from rl_value.actions import distribution_of, entropies, log_probability, log_probability_key
from rl_value.arguments import check_bounds, floats
from rl_value.counted_steps import acting_steps
from rl_value.estimators.bootstrapping.next_values import roles_of
from rl_value.estimators.explanation import compiled_line
from rl_value.estimators.time_place import OUTSIDE, refuse_time_unless_last
from rl_value.losses.loss import LossModule, delayed, parameters_of, refuse_moved
from rl_value.losses.regression import DISTANCES, distance, reduced_distance
from rl_value.masked_means import Reduction, explained_variance, kept, reduce
from rl_value.networks import check_network, output_of
from rl_value.single_rows import warn_of_single_rows

EntropyCoefficient = float | Tensor | Mapping[NestedKey, float | Tensor]


class ActorCriticLoss(LossModule):
    """A loss of an actor, with an optional critic and an optional entropy bonus.

    Args:
        actor_network: has ``get_dist``, the distribution of actions now.
        critic_network: writes ``"state_value"``; None leaves the critic out.
        actor: the same as `actor_network`.
        critic: the same as `critic_network`.
        entropy_bonus: add ``loss_entropy``.
        samples_mc_entropy: actions to draw where an entropy has no formula.
        entropy_coeff: its coefficient, or one for each head by the key of its action.
        critic_coeff: coefficient of ``loss_critic``; None leaves it out.
        loss_critic_type: ``"l1"``, ``"l2"`` or ``"smooth_l1"``.
        clip_value: how far the value may move from the stored one; None for any distance.
        log_explained_variance: report ``explained_variance``.
        separate_losses: parameters that both networks share learn from the actor's loss alone.
        delay_value: next values come from a copy of the critic that `SoftUpdate` moves.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        loss_mask_key: which steps count, see `LossModule`.
        check_finite: raise where a loss is NaN or infinite, see `LossModule`.
        moved: ``functional`` and ``device``, which have no effect and are deprecated; and
            arguments that are given elsewhere.

    Raises:
        TypeError: no actor is given, a network is no tensordict module, or an argument belongs
            elsewhere.
        ValueError: a setting is unknown or out of range; or two modules that differ carry their
            recurrent states under one key.
    """

    objective = "loss_objective"
    critic_name = "loss_critic"
    actor_method = "get_dist"

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase | None = None,
        critic_network: TensorDictModuleBase | None = None,
        *,
        actor: TensorDictModuleBase | None = None,
        critic: TensorDictModuleBase | None = None,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: EntropyCoefficient | None = None,
        critic_coeff: float | Tensor | None = 1.0,
        loss_critic_type: str = "smooth_l1",
        clip_value: float | None = None,
        log_explained_variance: bool = True,
        separate_losses: bool = False,
        delay_value: bool = False,
        reduction: Reduction | None = None,
        loss_mask_key: NestedKey | None = "auto",
        check_finite: bool | None = None,
        **moved: Any,
    ) -> None:
        super().__init__(
            reduction=reduction, loss_mask_key=loss_mask_key, check_finite=check_finite
        )
        refuse_moved(moved)
        self.actor_network = _actor_of(actor_network, actor)
        critic_network = _one_of("critic", critic_network, critic)
        check_network("critic_network", critic_network)
        refuse_shared_states(
            {"actor_network": self.actor_network, "critic_network": critic_network}
        )
        check_choice("loss_critic_type", loss_critic_type, [*DISTANCES])
        check_flags(entropy_bonus=entropy_bonus, log_explained_variance=log_explained_variance)
        check_flags(separate_losses=separate_losses, delay_value=delay_value)
        check_whole("samples_mc_entropy", samples_mc_entropy, 1)
        critic_coeff = None if critic_coeff is None else _number("critic_coeff", critic_coeff)
        self.critic_network = critic_network
        late = delayed(critic_network) if delay_value and critic_network is not None else None
        self.target_critic_network = late
        self.entropy_bonus = entropy_bonus
        self.samples_mc_entropy = samples_mc_entropy
        self.entropy_coeff = 0.01 if entropy_coeff is None else _coefficients(entropy_coeff)
        self.critic_coeff = None if critic_network is None else critic_coeff
        self.loss_critic_type = loss_critic_type
        self.clip_value = _bound(clip_value)
        self.log_explained_variance = log_explained_variance
        self.separate_losses = separate_losses
        networks = [one for one in (self.actor_network, critic_network) if one is not None]
        self._is_recurrent = not all(roles_of(one).is_row_wise for one in networks)

    @property
    def actor_network_params(self) -> TensorDictParams | None:
        """The parameters of the actor as a tensordict."""
        return parameters_of(self.actor_network)

    @property
    def critic_network_params(self) -> TensorDictParams | None:
        """The parameters of the critic as a tensordict."""
        return parameters_of(self.critic_network)

    @property
    def target_critic_network_params(self) -> TensorDictParams | None:
        """The parameters of the network that values next states."""
        late = self.target_critic_network
        return parameters_of(self.critic_network if late is None else late)

    def value_network_of(self) -> TensorDictModuleBase | None:
        """The critic."""
        return self.critic_network

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads: observations, action, and the parts of a target."""
        actor, critic = self.actor_network, self.critic_network
        after = [] if critic is None else roles_of(critic).observed
        observed = [*actor.in_keys, *(() if critic is None else critic.in_keys)]
        flags = [next_key(self.entries[name]) for name in ("reward", "done", "terminated")]
        known = [self.entries["action"], *self._log_probability_keys(), *flags, *observed]
        return list(dict.fromkeys([*known, *map(next_key, after)]))

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords: stored estimates, and markers."""
        stored = [self.entries[name] for name in ("advantage", "value_target", "value")]
        own = log_probability_key(self.entries["action"])
        return [*super().optional_keys, *stored, own, next_key(self.entries["value"])]

    def _log_probability_keys(self) -> list[NestedKey]:
        """Stored log-probabilities that the loss reads."""
        return []

    def _entropy_keys(self) -> list[NestedKey]:
        """Names of what an entropy bonus adds to a loss."""
        return ["entropy", "loss_entropy"] if self.entropy_bonus else []

    def _critic_keys(self) -> list[NestedKey]:
        """Names of what a critic adds to a loss."""
        return [] if self.critic_coeff is None else [self.critic_name]

    def forward(
        self, tensordict: TensorDictBase | None = None, *tensors: Tensor, **named: Tensor
    ) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: a TED batch ``[*B, T]`` with actions, the log-probabilities that the loss
                reads, and advantages and value targets or the inputs of the value estimator.
            tensors: in its place tensors in the order of `in_keys`.
            named: tensors by name, as ``next_reward`` for ``("next", "reward")``.

        Returns:
            Losses and statistics, scalars; with ``reduction="none"`` losses are ``[*B, T, 1]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: a shape does not fit, or a loss is not finite, see `check_finite`.
            RuntimeError: an action requires gradients.
        """
        if tensors or named or not isinstance(tensordict, TensorDictBase):
            made: TensorDictBase = self.by_names((tensordict, *tensors), named)
            return made
        if self._is_recurrent:
            refuse_time_unless_last(tensordict)
            warn_of_single_rows(tensordict)
        advantage = self._advantage(tensordict)
        counted = self.counted(tensordict)
        acting = counted
        if self.loss_mask_key == "auto":
            acting = acting_steps(tensordict, counted, self.entries["terminated"])
        with set_recurrent_mode(True):
            networks = self.actor_network, self.critic_network
            seen = self._seen(tensordict, *networks, more=self._stored())
            dist = distribution_of(self.actor_network, seen)
            value = None if self.critic_coeff is None else self._value(seen)
            found = self._actor_terms(seen, dist, advantage, acting)
            if value is not None:
                found |= self._of_critic(tensordict, value, counted)
            return self._collected(found, tensordict)

    def _explain(self, batch: TensorDictBase) -> list[str]:
        lines = ["losses: operations of torch, differentiated by autograd"]
        if all(value is not None for value in self._estimates(batch).values()):
            return [*lines, "advantage: stored", compiled_line(is_one_graph=True)]
        estimated = self.value_estimator.explain(batch).split("\n")
        return [*lines, f"advantage: estimated by {estimated[0]}", *estimated[1:]]

    def _estimates(self, batch: TensorDictBase) -> dict[NestedKey, Any]:
        """The advantage and the target that the loss reads, by key; None where one is missing."""
        wanted = ["advantage"] if self.critic_coeff is None else ["advantage", "value_target"]
        keys = [self.entries[name] for name in wanted]
        return {key: find(batch, as_tuple(key)) for key in keys}

    def _stored(self) -> list[NestedKey]:
        """Entries that the actor may have stored when it acted."""
        return [*self.actor_network.out_keys, self.entries["action"]]

    def _advantage(self, batch: TensorDictBase) -> Tensor:
        """The advantage of each step; the value estimator writes a missing one."""
        if not batch.batch_size.numel():
            msg = f"expected at least one step, got a batch of {list(batch.batch_size)}."
            raise ValueError(msg)
        there = self._estimates(batch)
        if any(value is None for value in there.values()):
            self._estimate(batch)
            for key, value in there.items():
                if value is not None:
                    batch.set(key, value)
        return _constant(batch, self.entries["advantage"])

    @torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
    def _estimate(self, batch: TensorDictBase) -> None:
        if self._estimator is None and find(batch, as_tuple(self.entries["advantage"])) is not None:
            self._warn_of_default()
        late = self.target_critic_network
        target = None if late is None else parameters_of(late)
        self.value_estimator(batch, target_params=target)

    def _actor_terms(
        self, batch: TensorDictBase, dist: Distribution, advantage: Tensor, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """Losses and statistics of the actor."""
        now = log_probability(dist, batch, self.entries["action"])
        before = self._before(batch, dist, now.shape)
        self._check_advantage(advantage, now.shape)
        log_weight = kept(now if before is None else now - before, counted).unsqueeze(-1)
        gain, reported = self._policy_objective(
            log_weight, self._scaled(advantage, counted), counted
        )
        objective = {self.objective: -self._reduce(gain, counted)}
        return objective | reported | self._entropy(batch, dist, counted)

    def _before(
        self, batch: TensorDictBase, dist: Distribution, shape: torch.Size
    ) -> Tensor | None:
        """Log-probabilities that are stored; None if the loss reads none."""
        return None

    def _policy_objective(
        self, log_weight: Tensor, advantage: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of each step, and named statistics.

        The weight is π(a|s), divided by μ(a|s) where that is stored.
        """
        return log_weight * advantage, {}

    def _scaled(self, advantage: Tensor, counted: Tensor | None) -> Tensor:
        """Advantages as the objective takes them."""
        return kept(advantage, counted)

    def _check_advantage(self, advantage: Tensor, shape: torch.Size) -> None:
        if advantage.shape != (*shape, 1):
            msg = (
                f"{self.entries['advantage']!r}: expected {[*shape, 1]}, one for each "
                f"log-probability, got {list(advantage.shape)}."
            )
            raise ValueError(msg)

    def _entropy(
        self, batch: TensorDictBase, dist: Distribution, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """``loss_entropy`` and ``entropy``; nothing without a bonus."""
        if not self.entropy_bonus:
            return {}
        by_head = entropies(dist, batch, self.entries["action"], self.samples_mc_entropy)
        whole = kept(_sum(list(by_head.values())), counted).unsqueeze(-1)
        mean = reduce(whole, counted)
        if isinstance(self.entropy_coeff, Mapping):
            absent = [key for key in by_head if key not in self.entropy_coeff]
            if absent:
                msg = f"entropy_coeff has no number for {absent[0]!r}: there are {list(by_head)}."
                raise KeyError(msg)
            parts = [self.entropy_coeff[key] * value for key, value in by_head.items()]
            bonus = self._reduce(kept(_sum(parts), counted).unsqueeze(-1), counted)
        else:
            reduced = mean if self.reduction == "mean" else self._reduce(whole, counted)
            bonus = self.entropy_coeff * reduced
        return {"entropy": mean.detach(), "loss_entropy": -bonus}

    def _of_critic(
        self, batch: TensorDictBase, value: Tensor, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """``loss_critic`` and its statistics."""
        weight, bound, kind = self.critic_coeff, self.clip_value, self.loss_critic_type
        assert weight is not None  # there are values
        target = _constant(batch, self.entries["value_target"])
        self._check_like(value, "value_target", target)
        if bound is not None:
            stored = _constant(batch, self.entries["value"])
            self._check_like(value, "value", stored)
        target, value = kept(target, counted), kept(value, counted)
        reported = {}
        if bound is None:
            loss = reduced_distance(value, target, kind, counted, self.reduction)
        else:
            stored = kept(stored, counted)
            moved = value - stored
            near = stored + moved.clamp(-bound, bound)
            share = (moved.detach().abs() > bound).to(value.dtype)
            reported["value_clip_fraction"] = reduce(share, counted).detach()
            found = torch.max(distance(value, target, kind), distance(near, target, kind))
            loss = reduce(found, counted, self.reduction)
        if self.log_explained_variance:
            reported["explained_variance"] = explained_variance(value.detach(), target, counted)
        plain = isinstance(weight, int | float) and weight == 1
        return {self.critic_name: loss if plain else weight * loss, **reported}

    def _check_like(self, value: Tensor, name: str, stored: Tensor) -> None:
        if stored.shape != value.shape:
            msg = (
                f"{self.entries[name]!r}: expected {list(value.shape)}, as the critic gives "
                f"values, got {list(stored.shape)}. Both end in a dimension of size 1."
            )
            raise UnfitValue(msg)

    def _value(self, batch: TensorDictBase) -> Tensor:
        critic = self.critic_network
        assert critic is not None  # there is a coefficient for it
        swapped: Any = nullcontext()
        if self.separate_losses:
            shared = {id(parameter) for parameter in self.actor_network.parameters()}
            params = TensorDict.from_module(critic).apply(
                lambda leaf: leaf.detach() if id(leaf) in shared else leaf
            )
            swapped = params.to_module(critic)
        with swapped:
            return output_of(critic, batch, self.entries["value"])


def _constant(batch: TensorDictBase, key: NestedKey) -> Tensor:
    """An entry that must be there, without gradient."""
    return floats(require(batch, key), key).detach()


def _bound(given: Any) -> float | None:
    """How far a value may move."""
    if isinstance(given, bool):
        msg = f"clip_value={given} is for ClipPPOLoss, which has an ε: pass a number."
        raise TypeError(msg)
    if given is not None:
        check_bounds(clip_value=given)
    bound: float | None = given
    return bound


def _number(name: str, given: Any) -> float | Tensor:
    """A coefficient, a number or a tensor of one."""
    if isinstance(given, Tensor) and given.numel() == 1:
        return given
    check_number(name, given)
    if math.isinf(given):
        msg = f"{name}: expected a finite number, got {given}."
        raise ValueError(msg)
    number: float = given
    return number


def _coefficients(given: Any) -> EntropyCoefficient:
    """A coefficient, or one for each head."""
    if isinstance(given, Mapping):
        return {
            as_key(as_tuple(key)): _number(f"entropy_coeff[{key!r}]", by)
            for key, by in given.items()
        }
    return _number("entropy_coeff", given)


def _sum(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).sum(0)


def _actor_of(actor_network: Any, actor: Any) -> Any:
    """The actor, by either of its names."""
    given = _one_of("actor", actor_network, actor)
    if given is None:
        msg = "expected an actor: pass actor_network=, a module with get_dist."
        raise TypeError(msg)
    check_network("actor_network", given, "get_dist")
    return given


def _one_of(name: str, network: Any, other: Any) -> Any:
    if network is not None and other is not None and network is not other:
        msg = f"{name}_network and {name} are the same argument: pass one of them."
        raise TypeError(msg)
    return network if other is None else other
