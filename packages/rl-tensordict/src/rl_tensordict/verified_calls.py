"""The calls of a policy, compared with the policy itself on the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from tensordict.nn import skip_existing
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl_tensordict.first_step import compare, run_once
from rl_tensordict.internals import has_global_hooks
from rl_tensordict.module_calls import ModuleCalls, Values, run_steps, through_tensordict
from rl_tensordict.tensor_step import TensorStep
from rl_tensordict.torch_internals import modules_of
from rl_tensordict.types import KeyPath

RunCalls: TypeAlias = Callable[[Values], Values]


class Layers:
    """The layers of networks, called one after another without what torch does around a call."""

    # That takes longer than a product of a small layer. It is left out where nothing is to happen
    # there: no hook, no compiled call. `torch.nn.Sequential` is such a network on one tensor; a
    # class that derives from it says so by `runs_layers = True`.

    def __init__(self) -> None:
        self._networks: list[tuple[Any, tuple[Any, ...]]] = []  # live layers, and as they were
        self._states: list[dict[str, Any]] = []
        self._is_watched = has_global_hooks()

    def unpack(self, function: Any) -> Any:
        """Return a function that calls the layers of a network; others as they are."""
        found: list[Any] = []
        if not isinstance(function, nn.Sequential) or not self._add(function, found):
            return function
        forwards = tuple(
            [_linear(layer) if type(layer) is nn.Linear else layer.forward for layer in found]
        )

        def run(value: Tensor, *more: Tensor) -> Any:
            if more:
                return function(value, *more)
            for forward in forwards:
                value = forward(value)
            return value

        return run

    def are_same(self) -> bool:
        """Whether networks and hooks are as they were."""
        for now, before in self._networks:
            if tuple(now.values()) != before:
                return False
        for state in self._states:
            if (
                state["_forward_hooks"]
                or state["_forward_pre_hooks"]
                or state["_backward_hooks"]
                or state["_backward_pre_hooks"]
                or state.get("_compiled_call_impl")
                or "forward" in state
            ):
                return False
        return has_global_hooks() is self._is_watched

    def _add(self, network: nn.Sequential, found: list[Any]) -> bool:
        """Add the layers of a network, those of networks in it too; False where one is watched."""
        if type(network) is not nn.Sequential and getattr(network, "runs_layers", None) is not True:
            return False
        if self._is_watched or not _is_plain(network):
            return False
        layers = tuple(modules_of(network).values())
        for layer in layers:
            if isinstance(layer, nn.Sequential):
                if not self._add(layer, found):
                    return False
            elif layer is None or not _is_plain(layer):
                return False
            else:
                found.append(layer)
                self._states.append(layer.__dict__)
        self._networks.append((modules_of(network), layers))
        self._states.append(network.__dict__)
        return True


def _is_plain(module: nn.Module) -> bool:
    """Whether a call of a module is its `forward`, as its class says it, and nothing else."""
    state = module.__dict__
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    has_hooks = any(state.get(name, True) for name in hooks)
    is_own = "forward" in state or type(module).__call__ is not nn.Module.__call__
    return not (has_hooks or is_own or state.get("_compiled_call_impl"))


def _linear(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The `forward` of a layer, without torch's search for its parameters, which takes as long."""
    state, product, forward = layer.__dict__, nn.functional.linear, layer.forward

    def run(value: Tensor) -> Tensor:
        try:
            parameters = state["_parameters"]
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # kept elsewhere, as by parametrizations
            return forward(value)
        return product(value, weight, bias)

    return run


class VerifiedCalls:
    """A policy as a list of calls, which write to a dictionary of tensors.

    Calls that are what the policy's `forward` does are made once on the first step too. Others are
    made alongside the policy, from the same generator states and buffers and on copies of its
    inputs; where they differ, the policy is called as it is from then on. A policy that differs
    leaves generators and buffers as one call does, and so does one that does not.

    Args:
        policy: a tensordict module, or any callable on a tensordict.
        profile: name of the range of torch's profiler in which the policy is called; none if empty.

    Attributes:
        is_flat: whether every call is on plain tensors.
        is_verified: whether the first step was made, and the calls were compared if need be.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> policy = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> calls = VerifiedCalls(policy)
        >>> calls({("observation",): torch.zeros(5, 3)}, torch.Size([5]))["action",].shape
        torch.Size([5, 2])
        >>> calls.stats()["flat"], calls.stats()["fallback"]
        (True, '')
    """

    def __init__(self, policy: Callable[..., Any], profile: str = "") -> None:
        self.policy = policy
        self.profile = profile
        self._start(ModuleCalls(policy))

    def _start(self, calls: ModuleCalls) -> None:
        self._calls, self.is_flat = calls, calls.is_flat
        self.is_verified, self._fallback = False, ""
        self._bound: tuple[Any, RunCalls] | None = None
        self._layers = Layers()

    @property
    def in_keys(self) -> list[KeyPath] | None:
        """Inputs of the policy that it does not compute itself; None if they are unknown."""
        return self._calls.in_keys

    @property
    def out_keys(self) -> list[KeyPath] | None:
        """What the policy writes; None if that is unknown."""
        return self._calls.out_keys

    def may_share(self, group: str) -> bool:
        """Tell whether two calls may write one entry of a group of the root.

        Args:
            group: the first part of the keys of its entries.

        Returns:
            False where the calls say that none of them does.
        """
        listed = [call.out_keys for call in self._calls.calls]
        written = [key for names in listed for key in names or () if key[0] == group]
        return None in listed or len(set(written)) < len(written)

    def stats(self) -> dict[str, Any]:
        """Report how the policy is called.

        Returns:
            `calls`, how many; `flat`; `reason`, why not every call is on plain tensors, or "";
            `verified`; and `fallback`, how the calls differed from the policy, or "".

        Example:
            >>> VerifiedCalls(lambda batch: batch).stats()["calls"]
            1
        """
        return {
            "calls": len(self._calls.calls),
            "flat": self.is_flat,
            "reason": self._calls.reason,
            "verified": self.is_verified,
            "fallback": self._fallback,
        }

    def refresh(self) -> None:
        """List the calls anew where parts of the policy were replaced, or hooks added."""
        if self._calls.is_stale():
            self._start(ModuleCalls(self.policy))

    def __call__(self, values: Mapping[KeyPath, Tensor], batch_size: torch.Size) -> Values:
        """Run the policy on a step's root.

        Arguments are not checked; errors of the policy come as they are.

        Args:
            values: tensors ``[*B, ...]`` by key. They are not changed.
            batch_size: the sizes ``[*B]``.

        Returns:
            What the policy wrote, ``[*B, ...]`` by key.
        """
        run = self._calls.run_mixed if self.is_verified else self._first_step
        made: Values = self._in_range(run)(values, batch_size)
        return made

    def bound(self) -> RunCalls | None:
        """Bind the calls, for steps between which the parts of the policy stay the same.

        Returns:
            A function that makes all calls: it takes tensors by key, and adds to them what the
            policy writes. It is the same one until the calls change. None if the policy was
            not verified yet, or needs a tensordict.
        """
        calls = self._calls
        if not self.is_verified or not self.is_flat:
            return None
        # what a module lists as the calls of its step is made in the place of the step
        listings = [call.listing() if call.listed else None for call in calls.calls]
        made_of = self.profile, listings
        if self._bound is None or self._bound[0] != made_of or not self._layers.are_same():
            pairs = zip(calls.calls, listings, strict=True)
            steps = [step for call, listing in pairs for step in call.steps(listing)]
            self._layers = Layers()
            steps = [(self._layers.unpack(call), read, made) for call, read, made in steps]
            self._bound = made_of, self._in_range(partial(run_steps, steps))
        return self._bound[1]

    def on_tensordict(self) -> Callable[..., Any]:
        """Return the policy itself, in its range of the profiler if it has one."""
        return self._in_range(self.policy)

    def _in_range(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.profile:
            return function

        def call(*inputs: Any) -> Any:
            with torch.profiler.record_function(self.profile):
                return function(*inputs)

        return call

    def _first_step(self, values: Mapping[KeyPath, Tensor], batch_size: torch.Size) -> Values:
        """Run the policy, and find out whether its calls do the same."""
        calls, reason = self._calls, ""
        for module in self.policy.modules() if isinstance(self.policy, nn.Module) else ():
            if isinstance(module, TensorStep):
                module.check_entries(values)
        if len(calls.calls) == 1 and not self.is_flat:
            made = calls.run_mixed(values, batch_size)
        elif _is_exact(calls):
            made, reason = run_once(calls, values, batch_size)
        else:
            policy: Any = self.policy  # a module, since it has a step
            if _is_lazy(policy):  # what the first call makes cannot be taken back
                return through_tensordict(policy, values, batch_size)
            made, reason = compare(policy, calls, values, batch_size)
        self.is_verified = True
        if reason:
            self._fallback = reason
            self._calls, self.is_flat = ModuleCalls(self.policy, reason=reason), False
        return made


def _is_exact(calls: ModuleCalls) -> bool:
    """Whether calls on tensors do what `forward` of their modules does; others are `forward`."""
    are_exact = all(call.is_exact or call.in_keys is None for call in calls.calls)
    return are_exact and not skip_existing()


def _is_lazy(policy: nn.Module) -> bool:
    return any(is_lazy(each) for each in (*policy.parameters(), *policy.buffers()))
