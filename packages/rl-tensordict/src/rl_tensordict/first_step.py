"""The first step of a policy: it is run once, and what its calls would do otherwise is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Generator, Tensor, nn

from rl_tensordict.construction import build
from rl_tensordict.entries import require
from rl_tensordict.flatten import leaves, nest
from rl_tensordict.module_calls import (
    DROPPED,
    Call,
    ModuleCalls,
    Values,
    call_on_tensordict,
    through_tensordict,
)
from rl_tensordict.nested_keys import as_key
from rl_tensordict.tensor_step import outputs_of
from rl_tensordict.torch_internals import buffers_of
from rl_tensordict.types import KeyPath


def run_once(
    calls: ModuleCalls, values: Mapping[KeyPath, Any], batch_size: torch.Size
) -> tuple[Values, str]:
    """Make exact calls on one tensordict, as `forward` does.

    Returns what they write, and why `ModuleCalls.run_mixed` would not write the same, or nothing.
    """
    root = build(nest(values), batch_size)
    made, reason = Values(), ""
    for call in calls.calls:
        before = dict(leaves(root))
        if call.out_keys is None:
            root = call_on_tensordict(call.function, root)
            after = dict(leaves(root))
            made |= {key: value for key, value in after.items() if value is not before.get(key)}
            dropped = [as_key(key) for key in before if key not in after]
            if dropped:
                reason = reason or f"{type(call.function).__name__} drops {dropped}"
        else:
            written, others = _write_outputs(call, root)
            made |= written
            if others:
                reason = reason or f"{others[0]!r} is no tensor"
    if reason:
        made = {key: value for key, value in leaves(root) if value is not values.get(key)}
    return made, reason


def _write_outputs(call: Call, root: Any) -> tuple[Values, list[Any]]:
    """Make a call on entries of a tensordict; returns outputs, and keys of what is no tensor."""
    in_keys, out_keys = call.in_keys or [], call.out_keys or []
    inputs = [require(root, key) for key in in_keys]
    outputs = outputs_of(call.function(*inputs), out_keys)
    given = zip((*in_keys, *out_keys), (*inputs, *outputs), strict=True)
    others = [
        as_key(key) for key, value in given if key != DROPPED and not isinstance(value, Tensor)
    ]
    written = {key: value for key, value in zip(out_keys, outputs, strict=True) if key != DROPPED}
    for key, value in written.items():
        root.set(key, value if isinstance(value, Tensor) else TensorDict.from_any(value))
    return written, others


def compare(
    policy: nn.Module, calls: ModuleCalls, values: Mapping[KeyPath, Any], batch_size: torch.Size
) -> tuple[Values, str]:
    """Run a policy and its calls from one state, and leave the state that the policy leaves.

    Returns what the policy writes, and how the calls differ, or nothing.
    """
    # copies: a network may change its inputs, and return memory that it writes again
    inputs, before = _copied(values), PolicyState.of(policy)
    truth = _copied(through_tensordict(policy, values, batch_size))
    after = PolicyState.of(policy)
    before.restore()
    try:
        found = calls.run_mixed(inputs, batch_size)
        reason = _difference(truth, found)
        if not reason:
            reason = _difference(after.copies(), PolicyState.of(policy).copies())
    except Exception as error:  # whatever the calls cannot do, the policy could
        reason = f"{type(error).__name__}: {error}"
    after.restore()
    return truth, reason


def _copied(values: Mapping[KeyPath, Any]) -> Values:
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()
    }


def _difference(truth: Values, found: Values) -> str:
    """Say in which entry two results differ, or nothing."""
    for key in {**truth, **found}:
        one, other = truth.get(key), found.get(key)
        if one is None or other is None:
            who = "the plan" if one is None else "the policy"
            return f"{as_key(key)!r} is written by {who} only"
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return f"{as_key(key)!r} is no tensor"
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{as_key(key)!r} has another shape or dtype"
        if not torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True):
            return f"{as_key(key)!r} has other values"
    return ""


class PolicyState(NamedTuple):
    """Generators and buffers that a policy changes by acting."""

    generators: list[Tensor]  # of torch, of the CPU first
    own: list[tuple[Generator, Tensor]]  # of modules, and their states
    # for each module: its live dictionary, and name -> (buffer, copy)
    buffers: list[tuple[str, dict[str, Any], dict[str, tuple[Any, Any]]]]

    @classmethod
    def of(cls, policy: nn.Module) -> PolicyState:
        """Copy the state."""
        generators = [torch.get_rng_state()]
        if torch.cuda.is_initialized():
            generators += torch.cuda.get_rng_state_all()
        attributes = [value for each in policy.modules() for value in vars(each).values()]
        own = [(each, each.get_state()) for each in attributes if isinstance(each, Generator)]
        buffers = [
            (path, own, {name: (one, _clone(one)) for name, one in own.items()})
            for path, own in ((path, buffers_of(each)) for path, each in policy.named_modules())
        ]
        return cls(generators, own, buffers)

    def restore(self) -> None:
        """Set the policy back to this state."""
        torch.set_rng_state(self.generators[0])
        if len(self.generators) > 1:
            torch.cuda.set_rng_state_all(self.generators[1:])
        for generator, state in self.own:
            generator.set_state(state)
        with torch.no_grad():
            for _, held, kept in self.buffers:
                held.clear()
                held.update((name, _as_copied(*pair)) for name, pair in kept.items())

    def copies(self) -> Values:
        """The copies of buffers, by the path of the module and the name."""
        return {
            ("buffer", f"{path}.{name}".lstrip(".")): copy
            for path, _, kept in self.buffers
            for name, (_, copy) in kept.items()
            if copy is not None
        }


def _clone(buffer: Tensor | None) -> Tensor | None:
    return None if buffer is None else buffer.clone()


def _as_copied(buffer: Tensor | None, copy: Tensor | None) -> Tensor | None:
    """A buffer with the values of its copy; another one where its shape was changed in place."""
    if buffer is None or copy is None:
        return buffer
    if buffer.shape != copy.shape:
        return copy.clone()
    return buffer if torch.equal(buffer, copy) else buffer.copy_(copy)
