"""A policy, flattened once into plain calls on tensors, for the rollouts of an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rl_layout import keys, refuse_shared_states
from rl_tensordict import ModuleCalls, VerifiedCalls, is_key
from rl_tensordict.arguments import check_type
from rl_tensordict.types import KeyPath

PolicyValues: TypeAlias = dict[KeyPath, Any]


class PolicyPlan(VerifiedCalls):
    """A policy as a list of calls, which write to a dictionary of tensors.

    A stock `TensorDictModule` is called as `module.module(*tensors)`, a module that offers
    `step(*tensors)`, which `has_tensor_step = True` in its class says, by that, a sequence part by
    part, and anything else through a tensordict. Where such a module offers `step_calls()` too, a
    rollout makes those calls in the place of `step`. On the first step they are compared with the
    policy; where they differ the policy is called as it is from then on.

    Args:
        policy: a tensordict module, or any callable on a tensordict.
        profile: name of the range of torch's profiler in which the policy is called; none if empty.

    Raises:
        ValueError: two modules of the policy carry their recurrent states under one key.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> policy = TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["action"])
        >>> plan = PolicyPlan(policy)
        >>> plan.in_keys, plan.stats()["flat"]
        ([('observation',)], True)
    """

    def __init__(self, policy: Callable[..., Any], profile: str = "") -> None:
        super().__init__(policy, profile)
        if self.may_share(keys.NEXT):
            refuse_shared_states({"policy": policy})

    def __call__(self, values: Mapping[KeyPath, Tensor], batch_size: torch.Size) -> PolicyValues:
        """Run the policy on a step's root.

        Args:
            values: tensors `[*B, ...]` by key. They are not changed.
            batch_size: the sizes `[*B]`.

        Returns:
            What the policy wrote, `[*B, ...]` by key.

        Raises:
            KeyError: it reads a key that the root lacks.
        """
        if self.is_verified:
            return super().__call__(values, batch_size)
        check_type("batch_size", batch_size, tuple, "a batch size")
        self.check_reads(values)
        try:
            return super().__call__(values, batch_size)
        except Exception as error:
            error.add_note(failure_note(self.policy, values, batch_size))
            raise

    def check_reads(self, shown: Iterable[KeyPath]) -> None:
        """Raise for an attempt to read what is not there.

        Args:
            shown: keys of a root.

        Raises:
            KeyError: the policy reads another one.

        Example:
            >>> from tensordict.nn import TensorDictModule
            >>> plan = PolicyPlan(TensorDictModule(torch.nn.Linear(3, 2), ["a"], ["b"]))
            >>> plan.check_reads([("a",)])
        """
        check_type("shown", shown, Iterable, "an iterable of keys")
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
        policy: a tensordict module, or any callable on a tensordict; a plan is returned as it is,
            with its calls listed anew where parts of its policy were replaced.

    Returns:
        The plan.

    Raises:
        TypeError: the policy cannot be called.

    Example:
        >>> policy_plan(lambda td: td.set("action", td["observation"])).is_flat
        False
    """
    if isinstance(policy, PolicyPlan):
        policy.refresh()
        return policy
    if not callable(policy):
        msg = f"expected a policy that can be called on a tensordict: got {type(policy).__name__}."
        raise TypeError(msg)
    return PolicyPlan(policy)


def failure_note(policy: Any, values: Mapping[KeyPath, Any], batch_size: torch.Size) -> str:
    """Say which call of a policy fails on a step's root, and on which inputs."""
    call, given = ModuleCalls(policy).find_failure(values) or (None, values)
    function = policy if call is None else call.function
    module = getattr(function, "__self__", function)  # `step` is a method of its module
    name = getattr(module, "__name__", type(module).__name__)
    listed = ", ".join(f"{keys.as_key(key)!r} {_described(leaf)}" for key, leaf in given.items())
    note = f"raised by {name} of the policy, which was given {listed or 'nothing'} for "
    note += f"environments {list(batch_size)}: "
    own = device_of(module)
    elsewhere = {leaf.device for leaf in given.values() if isinstance(leaf, Tensor)} - {own}
    if own is None or not elsewhere:
        return note + "compare these shapes with the sizes that the module was made for."
    return (
        f"{note}its parameters are on {own}, these on {', '.join(map(str, elsewhere))}. Pass "
        "auto_cast_to_device=True to rollout, policy_device= to a collector."
    )


def device_of(policy: Any) -> torch.device | None:
    """Device of a policy's first parameter or buffer; None if it has neither."""
    if not isinstance(policy, nn.Module):
        return None
    owned = chain(policy.parameters(), policy.buffers())
    return next((one.device for one in owned), None)


def _described(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return f"a {type(leaf).__name__}"
    return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"


def refuse_other_keys(
    plan: PolicyPlan, written: set[KeyPath], batch_size: torch.Size
) -> Callable[[PolicyValues], PolicyValues]:
    """Return a function that calls the plan itself; its outputs are compared at every step."""

    def run(scope: PolicyValues) -> PolicyValues:
        made = plan(scope, batch_size)
        if made.keys() != written:
            named, found = (
                sorted(str(keys.as_key(key)) for key in some) for some in (written, made)
            )
            msg = (
                f"the policy wrote {named} in the steps before, and {found} now: write the same at "
                "each."
            )
            raise ValueError(msg)
        return made

    return run
