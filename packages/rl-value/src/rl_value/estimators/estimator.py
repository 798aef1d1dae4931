"""Base class of value estimators: reads steps, calls the network, writes results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.nn.utils import skip_existing as skipping
from torch import Tensor

from rl_layout import keys, refuse_shared_states
from rl_layout.keys import next_key
from rl_tensordict import ModuleCalls, NestedKey, find, put
from rl_tensordict.arguments import check_flags, check_integer, check_type, drop_useless
from rl_value.arguments import check_fraction, check_step_values
from rl_value.counted_steps import under_next
from rl_value.dispatch import NamedModule, check_parameters, check_tensordict
from rl_value.estimators.bootstrapping.call_config import (
    MissingNext,
    ValueCallConfig,
    one_number,
)
from rl_value.estimators.bootstrapping.next_values import (
    ValueCalls,
    roles_of,
    unroll_steps,
)
from rl_value.estimators.explanation import described, estimator_lines
from rl_value.estimators.key_map import KeyMap, refuse_keys
from rl_value.estimators.time_place import OUTSIDE, time_last
from rl_value.estimators.transitions import (
    Transitions,
    UnrolledValues,
    ValuedTransitions,
    check_writable,
    full,
    is_time_last,
    path_of,
    standardised,
)
from rl_value.networks import check_network, held_out
from rl_value.scan.linear_scan import general_scan

USELESS = {
    "deactivate_vmap": "",  # scripts for TorchRL pass it
    "vectorized": "there is one algorithm",
    "device": "everything is computed on the device of the data",
}


class ValueEstimator(NamedModule):
    """Estimates how good steps were, and what their values should be.

    Called on a TED tensordict it writes ``"advantage"``, ``"value_target"``, ``"state_value"``
    and ``("next", "state_value")``, each ``[*B, T, 1]``. Next values come from the call that
    gives the values: inside a segment from the row that follows, after it from the real next
    observation, read as its continuation. So recurrent networks are exact; they are called in
    recurrent mode.

    Steps marked ``next_missing`` (unless terminated) or ``history_missing`` get the
    advantage 0 and their own value as target, carry nothing, and are in no mean. So do members of
    a group that are out. Padding gets zeros.

    Args:
        gamma: discount in [0, 1]: a number, or a tensor that broadcasts with the reward.
        value_network: writes the values; None reads stored ones.
        shifted: read a sequence of ``T + shifted_budget`` observations for each row of the
            batch; steps that do not fit are False in ``"shifted_valid"``, with zeros.
        differentiable: let gradients through to rewards, observations and discounts. The networks'
            own parameters are constants, as are passed ones: neither an advantage nor a
            target trains a critic.
        skip_existing: use stored values if there are any.
        average_rewards: standardise the rewards of the steps that count first; those left out,
            as without their next observation, are in no mean.
        time_dim: dimension of time; by default the one named so, or the last of the batch.
        missing_next: ``"root"`` puts a step's own observation in the place of a missing next
            one, and counts it in `num_substituted`; ``"skip"`` leaves the step out.
        shifted_budget: how much longer than T the sequence of `shifted` is.
        value_chunk_size: elements of the leading dimension to read at a time.
        num_chunks: number of pieces to read instead; a segment is never cut.
        num_chunk: the same as `num_chunks`.
        value_chunk_dim: dimension that `value_chunk_size` counts.
        single_call: False reads values and next values by two calls.
        legacy: ``deactivate_vmap``, which has no effect since networks are never called through
            vmap; ``vectorized`` and ``device``, which have none either and are deprecated; and keys
            that are set by `set_keys`.

    Raises:
        ValueError: a setting is outside its range, or contradicts another; or two modules of the
            network carry their recurrent states under one key.
        TypeError: a number is not an integer, an argument is unknown, or the network has no keys.
        RuntimeError: a key is given here.
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        *,
        gamma: float | Tensor,
        value_network: TensorDictModuleBase | None,
        shifted: bool = False,
        differentiable: bool = False,
        skip_existing: bool | None = None,
        average_rewards: bool = False,
        time_dim: int | None = None,
        missing_next: MissingNext = "skip",
        shifted_budget: int = 1,
        value_chunk_size: int | None = None,
        num_chunks: int | None = None,
        num_chunk: int | None = None,
        value_chunk_dim: int = 0,
        single_call: bool | None = None,
        **legacy: Any,
    ) -> None:
        super().__init__()
        refuse_keys(drop_useless(legacy, USELESS))
        check_fraction("gamma", gamma)
        check_network("value_network", value_network)
        check_flags(differentiable=differentiable, average_rewards=average_rewards)
        flag = bool | int | np.bool_ | None
        check_type("skip_existing", skip_existing, flag, "True, False or None")
        if time_dim is not None:
            check_integer("time_dim", time_dim)
        refuse_shared_states({"value_network": value_network})
        self.gamma = gamma
        self.value_network = value_network
        self.differentiable = differentiable
        self.skip_existing = skip_existing
        self.average_rewards = average_rewards
        self.time_dim = time_dim
        self.calls = ValueCallConfig(
            shifted=shifted,
            shifted_budget=shifted_budget,
            single_call=True if single_call is None else single_call,
            value_chunk_size=value_chunk_size,
            num_chunks=one_number(num_chunks, num_chunk),
            value_chunk_dim=value_chunk_dim,
            missing_next=missing_next,
        )
        self.entries = KeyMap.of(value_network)
        self._substituted: Tensor | int = 0
        self._bound: Any = None  # a network, and its calls

    @property
    def num_substituted(self) -> int:
        """How many next observations the last call replaced by the step's own."""
        return int(self._substituted)

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads at least: observations, reward, flags and next observations."""
        observed = [] if self.value_network is None else list(self.value_network.in_keys)
        after = [] if self.value_network is None else roles_of(self.value_network).observed
        flags = [next_key(self.entries[name]) for name in ("reward", "done", "terminated")]
        return list(dict.fromkeys([*observed, *flags, *map(next_key, after)]))

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords: markers, stored values, next states."""
        network, value = self.value_network, self.entries["value"]
        states = [] if network is None else list(map(next_key, network.in_keys))
        steps = under_next(self.entries["steps_to_next_obs"])
        return [*super().optional_keys, *states, value, next_key(value), steps]

    @property
    def outputs(self) -> list[NestedKey]:
        """Keys of the tensors that `forward` returns when it is called with tensors."""
        return [self.entries[name] for name in ("advantage", "value_target")]

    @property
    def tensor_keys(self) -> KeyMap:
        """The keys that `set_keys` sets, by role, as ``tensor_keys.advantage``."""
        return self.entries

    def set_keys(self, **entries: NestedKey | None) -> None:
        """Give entries other names.

        Args:
            entries: a key for ``advantage``, ``value_target``, ``value``, ``reward``, ``done``,
                ``terminated``, ``steps_to_next_obs`` or ``sample_log_prob``. What is under
                ``"next"`` is named as at the root.

        Raises:
            KeyError: there is no such entry, or the network does not write the value.
            ValueError: a key is neither a string nor a tuple of strings.
        """
        value = entries.get("value")
        if value is not None and self.value_network is not None:
            written = self.value_network.out_keys
            if value not in written:
                msg = f"value: the network writes {written}, not {value!r}."
                raise KeyError(msg)
        self.entries.set(**entries)

    def forward(
        self,
        tensordict: TensorDictBase | None = None,
        *tensors: Tensor,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
        **named: Tensor,
    ) -> TensorDictBase:
        """Write advantage, target and values to a batch.

        Args:
            tensordict: a TED batch ``[*B, T]``.
            tensors: in its place tensors in the order of `in_keys`.
            named: tensors by name, as ``next_reward`` for ``("next", "reward")``.
            params: parameters of the value network in place of its own.
            target_params: parameters to evaluate next states with.
            time_dim: dimension of time of this batch, in place of the estimator's own.

        Returns:
            The batch.

        Raises:
            KeyError: an entry is missing.
            TypeError: an entry has the wrong dtype.
            ValueError: an entry has the wrong shape, settings and data contradict each other, or
                observations say that time is another dimension of a batch that names none.
            RuntimeError: the batch is locked.
        """
        given: dict[str, Any] = {"params": params, "target_params": target_params}
        given["time_dim"] = time_dim
        if tensors or named or not isinstance(tensordict, TensorDictBase):
            made: TensorDictBase = self.by_names((tensordict, *tensors), named, **given)
            return made
        if torch.compiler.is_dynamo_compiling():
            written: TensorDictBase = _outside(self.forward, tensordict, **given)
            return written
        check_writable(tensordict)
        with nullcontext() if self.differentiable else torch.no_grad():
            valued = self._valued(tensordict, params, target_params, time_dim=time_dim)
            self._write(tensordict, valued, self.estimate(valued))
        return tensordict

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        next_value: Tensor | None = None,
        time_dim: int | None = None,
    ) -> Tensor:
        """Compute value targets alone, and write nothing.

        Args:
            tensordict: a TED batch ``[*B, T]``.
            params: parameters of the value network in place of its own.
            target_params: parameters to evaluate next states with.
            next_value: values of the next states ``[*B, T, 1]``, if known.
            time_dim: dimension of time of this batch, in place of the estimator's own.

        Returns:
            ``[*B, T, 1]``.
        """
        if torch.compiler.is_dynamo_compiling():
            given = {"params": params, "target_params": target_params, "time_dim": time_dim}
            call = self.value_estimate
            target: Tensor = _outside(call, tensordict, next_value=next_value, **given)
            return target
        check_tensordict(tensordict)
        with nullcontext() if self.differentiable else torch.no_grad():
            valued = self._valued(tensordict, params, target_params, next_value, time_dim)
            return valued.steps.scatter(self.estimate(valued)[1])

    def explain(self, tensordict: TensorDictBase, *, time_dim: int | None = None) -> str:
        """Say which way a batch takes, and why; nothing is computed or written.

        Args:
            tensordict: a TED batch ``[*B, T]``.
            time_dim: dimension of time of this batch, in place of the estimator's own.

        Returns:
            A few lines: how segments were found, which rows are left out, how the network is
            called, which scan computes the returns, and what compiled code does.

        Raises:
            KeyError: an entry is missing.
            TypeError: an entry has the wrong dtype, or the batch is no tensordict.
            ValueError: an entry has the wrong shape, or settings and data contradict each other.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> from rl_value import TD0Estimator
            >>> from tensordict.nn import TensorDictModule
            >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
            >>> said = TD0Estimator(gamma=0.5, value_network=net).explain(trajectories([3, 1]))
            >>> said.splitlines()[4]
            '  scan: none: each target looks one row ahead'
        """
        check_tensordict(tensordict)
        with nullcontext() if self.differentiable else torch.no_grad():
            steps = self._transitions(tensordict, time_dim)
            stored = all(value is not None for value in self._stored_values(steps))
            way = self.explain_scan(steps)
        if self.differentiable:
            way += f"; {general_scan(steps.reward)}, a node of autograd, where gradients are wanted"
        source = self.value_network or "missing, and there is no network"
        source = "stored" if stored else source
        lines = estimator_lines(source, steps, self.calls, way)
        return described(type(self).__name__, lines)

    def explain_scan(self, steps: Transitions) -> str:
        """Say which scan computes the returns of steps, and why."""
        return f"as {type(self).__name__}.estimate does"

    @abstractmethod
    def estimate(self, valued: ValuedTransitions) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets of steps, ``[M, *G, C]`` each."""

    def returns_of(self, steps: Transitions, found: UnrolledValues) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets where the values are known already.

        Args:
            steps: the steps of a batch.
            found: their values and those of what follows them.

        Returns:
            Advantage and target, ``[M, *G, C]`` each.
        """
        return self.estimate(self._cut(steps, found))

    def _valued(
        self,
        tensordict: TensorDictBase,
        params: TensorDictBase | None,
        target_params: TensorDictBase | None,
        next_value: Tensor | None = None,
        time_dim: int | None = None,
    ) -> ValuedTransitions:
        """Read the steps of a batch and call the network."""
        if target_params is not None and self.calls.shifted:
            msg = "shifted=True reads values and next values at once: it takes no target_params."
            raise ValueError(msg)
        if params is not None or target_params is not None:
            check_parameters(params=params, target_params=target_params)
        if next_value is not None:
            check_step_values("next_value", next_value, tensordict.batch_size)
        steps = self._transitions(tensordict, time_dim)
        given = None if next_value is None else steps.gather(next_value)
        found = self._values(steps, params, target_params, given)
        return self._cut(steps, found)

    def _transitions(self, tensordict: TensorDictBase, time_dim: int | None) -> Transitions:
        """The steps of a batch, with time last."""
        dim = self.time_dim if time_dim is None else time_dim
        if dim is None and tensordict.batch_size and is_time_last(tensordict):
            return Transitions.of(tensordict, self.entries)
        batch, dim = time_last(tensordict, dim)
        return Transitions.of(batch, self.entries, dim)

    def _stored_values(self, steps: Transitions) -> tuple[Tensor | None, Tensor | None]:
        """Stored values and next values, if they are to be used."""
        reuse = skipping() if self.skip_existing is None else self.skip_existing
        if not reuse and self.value_network is not None:
            return None, None
        key = self.entries["value"]
        return steps.stored(key), steps.stored(next_key(key))

    def _values(
        self,
        steps: Transitions,
        params: TensorDictBase | None,
        target_params: TensorDictBase | None,
        given: Tensor | None,
    ) -> UnrolledValues:
        """Stored values if they are to be reused, the network's otherwise."""
        network, key = self.value_network, self.entries["value"]
        now, following = self._stored_values(steps)
        following = following if given is None else given
        if now is None or following is None:
            if network is None:
                msg = (
                    f"{key!r} or {next_key(key)!r} is missing, and there is no value network. "
                    "Pass value_network, or store both."
                )
                raise ValueError(msg)
            if key not in network.out_keys:
                msg = f"the network writes {list(network.out_keys)}, not {key!r}. "
                msg += "Call set_keys(value=...)."
                raise KeyError(msg)
            # nothing trains them through a target
            params = None if params is None else params.detach()
            target_params = None if target_params is None else target_params.detach()
            with held_out(network) if torch.is_grad_enabled() else nullcontext():
                bound, roles = self._calls_of(network), roles_of(network)
                own = params, target_params, bound
                found = unroll_steps(ValueCalls(network, roles, key, self.calls, *own), steps)
            self.count_substituted(found)
            if now is not None:  # stored values also follow each other
                shifted_values = steps.successor_values(now, found.following)
                found = replace(found, now=now, following=shifted_values)
            return found if following is None else replace(found, following=following)
        return UnrolledValues(now, following, steps.missing, None, None)

    def _calls_of(self, network: TensorDictModuleBase) -> ModuleCalls:
        """The calls of the network, listed anew if it was changed."""
        bound: tuple[TensorDictModuleBase, ModuleCalls] | None = self._bound
        if bound is None or bound[0] is not network or bound[1].is_stale():
            self._bound = bound = network, ModuleCalls(network).bind()
        return bound[1]

    def count_substituted(self, found: UnrolledValues) -> None:
        """Keep how many next observations were replaced by the step's own."""
        substituted = 0 if found.substituted is None else found.substituted
        if substituted is not self._substituted:  # a module takes long to set anything
            self._substituted = substituted

    def _cut(self, steps: Transitions, found: UnrolledValues) -> ValuedTransitions:
        """Attach cuts to valued steps: at ends, at steps left out and at the steps before."""
        late = None if found.in_budget is None else steps.widen(~found.in_budget)
        left_out = found.missing
        for others in (late, steps.without_history, steps.left_out, found.overwritten):
            if others is not None:
                left_out = others if left_out is None else left_out | others
        # a member of a group may terminate, or be truncated, inside a segment of the batch
        ends = steps.widen(steps.ends) | steps.terminated
        cut = ends if steps.truncated is None else ends | steps.truncated
        if left_out is not None:
            cut = cut | left_out | steps.successor_values(left_out, torch.zeros_like(left_out))
        reward = full(steps.reward)
        if self.average_rewards:
            reward = standardised(reward, left_out)
        gamma = steps.per_step(self.gamma)
        value, following = full(found.now), full(found.following)
        return ValuedTransitions(steps, reward, value, following, cut, left_out, gamma, found)

    def _write(
        self,
        tensordict: TensorDictBase,
        valued: ValuedTransitions,
        results: tuple[Tensor, Tensor],
    ) -> None:
        found, steps = valued.found, valued.steps
        for name, result in zip(("advantage", "value_target"), results, strict=True):
            if self._selected is None or self.entries[name] in self._selected:
                put(tensordict, path_of(self.entries[name]), steps.scatter(result))
        if self._selected is None:
            value = path_of(self.entries["value"])
            put(tensordict, value, steps.scatter(found.now))
            put(tensordict, (keys.NEXT, *value), steps.scatter(found.following))
        if found.in_budget is not None:
            in_budget = found.in_budget
            if found.missing is not None:
                in_budget = in_budget & ~found.missing.flatten(1).any(1)
            tensordict.set(keys.SHIFTED_VALID, steps.scatter(in_budget))
        elif find(tensordict, (keys.SHIFTED_VALID,)) is not None:  # of an earlier call
            tensordict.set(keys.SHIFTED_VALID, steps.scatter(torch.ones_like(steps.ends)))
        for marker, flag in found.markers(steps).items():
            tensordict.set(marker, steps.scatter(flag))


@torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
def _outside(call: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call a function outside of compiled code."""
    return call(*args, **settings)
