"""A policy, flattened once into plain calls on tensors, and checked against the policy itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl_envs.env.arguments import check_kind
from rl_layout import keys, refuse_shared_states
from rl_tensordict import build, is_key, nest

Key: TypeAlias = tuple[str, ...]
# the settings under which a module writes to the tensordict that it is given
INPLACE: dict[Any, tuple[bool | None, ...]] = {
    TensorDictModule: (True,),
    TensorDictSequential: (True, None),
}
Values: TypeAlias = dict[Key, Any]


@dataclass(frozen=True)
class Entry:
    """One call of a plan."""

    # takes the tensors of in_keys, returns those of out_keys, one or a tuple; or takes and returns
    # a tensordict where both are None
    call: Callable[..., Any]
    in_keys: list[Key] | None
    out_keys: list[Key] | None  # ("_",) is dropped
    # lists the inner calls with their keys, valid until the module's parts change; or None
    parts: Callable[[], Iterable[tuple[Any, Any, Any]]] | None = None

    def bound(self) -> list[Entry]:
        """Flatten into the inner calls, for a run of steps in which the policy does not change."""
        if self.parts is None:
            return [self]
        return [Entry(call, _keys(read), _keys(made)) for call, read, made in self.parts()]

    def on(self, scope: Mapping[Key, Any]) -> Values:
        """Make a flat call; returns its outputs by key."""
        in_keys, out_keys = self.in_keys or [], self.out_keys or []
        made = self.call(*[scope[key] for key in in_keys])
        if type(made) is not tuple or len(made) != len(out_keys):
            made = self.outputs(made)
        written = dict(zip(out_keys, made))  # noqa: B905 - as many as keys, and quicker
        written.pop(("_",), None)
        return written

    def outputs(self, made: Any) -> tuple[Any, ...]:
        """Return one tensor for each of `out_keys`; raise if their numbers differ."""
        found, count = made if isinstance(made, tuple) else (made,), len(self.out_keys or ())
        if len(found) != count:
            msg = f"expected {count} outputs for {self.out_keys}: got {len(found)}."
            raise ValueError(msg)
        return found


class PolicyPlan:
    """A policy as a list of calls, which write to a dictionary of tensors.

    A stock `TensorDictModule` is called as `module.module(*tensors)`, a module that offers
    `step(*tensors)` by that, a sequence part by part, and anything else through a tensordict. Where
    a module offers `step_calls()` too, a rollout makes those calls in the place of `step`. On
    the first step the plan is run alongside the policy under the same generator state; where they
    differ the policy is called as it is from then on.

    Args:
        policy: a tensordict module, or any callable on a tensordict.

    Raises:
        ValueError: two modules of the policy carry their recurrent states under one key.

    Example:
        >>> policy = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> plan = PolicyPlan(policy)
        >>> plan.in_keys, plan.stats()["flat"]
        ([('observation',)], True)
    """

    def __init__(self, policy: Callable[..., Any]) -> None:
        self.policy = policy
        self.entries = list(_entries(policy))
        if _may_share_states(self.entries):
            refuse_shared_states({"policy": policy})
        self._fallback = ""
        self._is_verified = False

    @property
    def is_flat(self) -> bool:
        """Whether every call is on plain tensors."""
        return all(entry.in_keys is not None for entry in self.entries)

    @property
    def calls(self) -> list[Entry] | None:
        """The calls of a step on plain tensors; None where the plan itself must be called."""
        return self.entries if self.is_flat and self._is_verified else None

    @property
    def in_keys(self) -> list[Key] | None:
        """Inputs of the plan that it does not compute itself; None where they are unknown."""
        made: set[Key] = set()
        read: dict[Key, None] = {}
        for entry in self.entries:
            if entry.in_keys is None or entry.out_keys is None:
                return None
            read |= dict.fromkeys(key for key in entry.in_keys if key not in made)
            made |= set(entry.out_keys)
        return list(read)

    def stats(self) -> dict[str, Any]:
        """Report how the policy is called.

        Returns:
            `calls`, `flat`, `verified`, and `fallback`: why the policy is called as it is, or "".

        Example:
            >>> PolicyPlan(lambda td: td).stats()["calls"]
            1
        """
        return {
            "calls": len(self.entries),
            "flat": self.is_flat,
            "verified": self._is_verified,
            "fallback": self._fallback,
        }

    def __call__(self, values: Mapping[Key, Tensor], batch_size: torch.Size) -> Values:
        """Run the policy on a step's root.

        Args:
            values: tensors `[*B, ...]` by key. They are not changed.
            batch_size: the sizes `[*B]`.

        Returns:
            What the policy wrote, `[*B, ...]` by key.

        Raises:
            KeyError: it reads a key that the root lacks.
        """
        if not self._is_verified:
            check_kind(batch_size, tuple, "a batch size")
            return self._verified(values, batch_size)
        return self._run(values, batch_size)

    def _run(self, values: Mapping[Key, Tensor], batch_size: torch.Size) -> Values:
        scope, made = dict(values), Values()
        for entry in self.entries:
            if entry.in_keys is None or entry.out_keys is None:
                written = _through_tensordict(entry.call, scope, batch_size)
            else:
                written = entry.on(scope)
            scope |= written
            made |= written
        return made

    def _verified(self, values: Mapping[Key, Tensor], batch_size: torch.Size) -> Values:
        """Run the policy and the plan under one generator state, and compare."""
        self._is_verified = True
        self.check_reads(values)
        generators, buffers = _generators(), _buffers(self.policy)
        try:
            truth = _through_tensordict(self.policy, dict(values), batch_size)
        except Exception as error:
            error.add_note(failure_note(self.policy, values, batch_size))
            raise
        if all(entry.in_keys is None for entry in self.entries):
            return truth  # called as it is, once: there is nothing to compare
        after = _generators()
        _restore(generators, buffers, self.policy)
        try:
            found = self._run(values, batch_size)
            reason = _difference(truth, found)
        except Exception as error:  # whatever the plan cannot do, the policy could
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._fallback = reason
            self.entries = [Entry(self.policy, None, None)]
            _restore(after, {}, self.policy)
        return truth

    def check_reads(self, shown: Iterable[Key]) -> None:
        """Raise for an attempt to read what is not there.

        Args:
            shown: keys of a root.

        Raises:
            KeyError: the policy reads another one.

        Example:
            >>> PolicyPlan(TensorDictModule(nn.Linear(3, 2), ["a"], ["b"])).check_reads([("a",)])
        """
        check_kind(shown, Iterable, "an iterable of keys")
        shown = list(shown)
        if not all(isinstance(key, tuple) and is_key(key) for key in shown):
            msg = f"expected keys as tuples of strings: got {shown}."
            raise TypeError(msg)
        lacking = [key for key in self.in_keys or [] if key not in shown]
        if lacking:
            named, there = ([keys.as_key(key) for key in some] for some in (lacking, shown))
            msg = (
                f"the policy reads {named}, which the environment lacks: it shows {there}. Pass "
                f"policy= to its constructor for recurrent states, or rename the keys."
            )
            raise KeyError(msg)


def policy_plan(policy: Any) -> PolicyPlan:
    """Flatten a policy into calls on plain tensors.

    Args:
        policy: a tensordict module, or any callable on a tensordict; a plan is returned as it is.

    Returns:
        The plan.

    Raises:
        TypeError: the policy cannot be called.

    Example:
        >>> policy_plan(lambda td: td.set("action", td["observation"])).is_flat
        False
    """
    if isinstance(policy, PolicyPlan):
        return policy
    if not callable(policy):
        msg = f"expected a policy that can be called on a tensordict: got {type(policy).__name__}."
        raise TypeError(msg)
    return PolicyPlan(policy)


def _entries(policy: Any) -> Iterator[Entry]:
    if _has_hooks(policy):
        yield Entry(policy, None, None)
    elif isinstance(policy, TensorDictModuleBase) and callable(getattr(type(policy), "step", None)):
        # asked of the class: an instance hands on unknown names to the module inside
        parts = policy.step_calls if hasattr(type(policy), "step_calls") else None
        yield Entry(policy.step, _keys(policy.in_keys), _keys(policy.out_keys), parts)
    elif _is_stock(policy, TensorDictSequential):
        for part in policy.module:
            yield from _entries(part)
    elif _is_stock(policy, TensorDictModule):
        yield Entry(policy.module, _keys(policy.in_keys), _keys(policy.out_keys))
    else:
        yield Entry(policy, None, None)


def _may_share_states(entries: list[Entry]) -> bool:
    """Whether two calls write one entry of the next step, or some call can write anything."""
    written = [key for one in entries for key in one.out_keys or () if key[0] == keys.NEXT]
    return len(set(written)) < len(written) or any(one.out_keys is None for one in entries)


def _is_stock(policy: Any, kind: Any) -> bool:
    """Whether a module's call is tensordict's own, without options that change it."""
    return (
        isinstance(policy, kind)
        and type(policy).forward is kind.forward
        and type(policy).__call__ is kind.__call__
        and policy.__dict__.get("inplace", True) in INPLACE[kind]
        and not policy.__dict__.get("partial_tolerant", False)
        and not policy.__dict__.get("_select_before_return", False)
        and (kind is TensorDictSequential or _is_plain(policy))
        and (kind is TensorDictModule or isinstance(policy.module, nn.ModuleList))
    )


def _is_plain(policy: Any) -> bool:
    names = ("_kwargs", "method", "method_kwargs", "_get_kwargs")
    return not any(policy.__dict__.get(name) for name in names)


def _has_hooks(policy: Any) -> bool:
    return isinstance(policy, nn.Module) and bool(
        policy._forward_hooks or policy._forward_pre_hooks
    )


def _keys(names: Any) -> list[Key]:
    return [keys.as_tuple(name) for name in names]


def failure_note(policy: Any, values: Mapping[Key, Any], batch_size: torch.Size) -> str:
    """Say which call of a policy fails on a step's root, and what it is given."""
    scope = dict(values)
    for entry in _entries(policy):
        if entry.in_keys is None:
            break
        try:
            scope |= entry.on(scope)
        except Exception:
            return _note(entry, {key: scope.get(key) for key in entry.in_keys}, batch_size)
    return _note(Entry(policy, None, None), values, batch_size)


def _note(entry: Entry, given: Mapping[Key, Any], batch_size: torch.Size) -> str:
    """What a call that failed was given."""
    module = getattr(entry.call, "__self__", entry.call)  # `step` is a method of its module
    name = getattr(module, "__name__", type(module).__name__)
    listed = ", ".join(f"{keys.as_key(key)!r} {_described(leaf)}" for key, leaf in given.items())
    return (
        f"raised by {name} of the policy, which was given {listed or 'nothing'} for environments "
        f"{list(batch_size)}: compare these shapes with the sizes that the module was made for."
    )


def _described(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return f"a {type(leaf).__name__}"
    return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"


def _through_tensordict(
    policy: Callable[..., Any], scope: Mapping[Key, Tensor], batch_size: torch.Size
) -> Values:
    root: TensorDictBase = build(nest(scope), batch_size)
    made = policy(root)
    made = root if made is None else made
    return {key: value for key, value in keys.leaves(made) if value is not scope.get(key, None)}


def _difference(truth: Values, found: Values) -> str:
    """Say in which entry two results differ, or nothing."""
    for key in {**truth, **found}:
        one, other = truth.get(key), found.get(key)
        if one is None or other is None:
            who = "the plan" if one is None else "the policy"
            return f"{keys.as_key(key)!r} is written by {who} only"
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return f"{keys.as_key(key)!r} is no tensor"
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{keys.as_key(key)!r} has another shape or dtype"
        if not torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True):
            return f"{keys.as_key(key)!r} has other values"
    return ""


def _generators() -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states + (torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])


def _buffers(policy: Any) -> dict[str, Tensor]:
    named = policy.named_buffers() if isinstance(policy, nn.Module) else ()
    return {name: buffer.clone() for name, buffer in named}


def _restore(generators: list[Tensor], buffers: dict[str, Tensor], policy: Any) -> None:
    torch.set_rng_state(generators[0])
    if len(generators) > 1:
        torch.cuda.set_rng_state_all(generators[1:])
    for name, buffer in buffers.items():
        policy.get_buffer(name).copy_(buffer)
