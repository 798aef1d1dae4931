"""Sequences of tensordict modules, flattened into calls on plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Tensor, nn

from rl_policies.modules.explained import explained, note
from rl_policies.modules.tensor_step import Call, TensorStep, ordinary, outputs_of, read
from rl_tensordict import NestedKey


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A sequence flattened into calls on tensors, in the order they run."""

    calls: list[Call]  # functions, with the keys of their inputs and outputs
    modules: list[dict[str, Any]]  # live dictionaries of children, of every visited module
    children: list[tuple[Any, ...]]  # their values when the plan was made
    hooks: tuple[dict[Any, Any], ...]  # live dictionaries of hooks, empty when the plan was made
    # whether every call computes what the forward of its module does, in every mode. A module of
    # another package that offers step promises that for acting only
    exact: bool

    def stale(self) -> bool:
        """Tell whether modules were replaced, or hooks added, after the plan was made."""
        children = [tuple(now.values()) for now in self.modules]
        return any(self.hooks) or children != self.children

    def run(self, values: dict[NestedKey, Any], last: int | None = None) -> None:
        """Run the calls up to `last`, all if None; outputs are added to `values`."""
        for call, in_keys, out_keys in self.calls[:last]:
            outputs = call(*[values[key] for key in in_keys])
            if type(outputs) is not tuple or len(outputs) != len(out_keys):
                outputs = outputs_of(outputs, out_keys)
            values.update(zip(out_keys, outputs))  # noqa: B905 - as many as keys, and quicker

    def run_on(self, tensordict: TensorDictBase, module: Any, last: int | None = None) -> None:
        """Run the calls on entries of a tensordict, and write the outputs of `module` to it."""
        values: dict[NestedKey, Any] = {key: read(tensordict, key) for key in module.in_keys}
        self.run(values, last)
        for key in module.out_keys:
            tensordict.set(key, values[key])


class PlannedStep(TensorStep):
    """A sequence of tensordict modules that runs its parts on plain tensors.

    The plan is made on the first call, and again after modules were replaced or hooks added.
    """

    @explained
    def __getitem__(self, index: int | slice | str) -> TensorDictModuleBase:
        """Get one part by number or name, or by a slice a sequence of some, which shares them."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        return _sequence_of([*self.module[index]])

    @explained
    def select_subsequence(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> TensorDictSequential:
        """Choose the parts that some inputs reach, and that some outputs need.

        Args:
            in_keys: the inputs; all by default.
            out_keys: the outputs; all by default.

        Returns:
            A sequence of these parts.
        """
        plain = TensorDictSequential(*self.module)
        return _sequence_of([*plain.select_subsequence(in_keys, out_keys).module])

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run every part, without a tensordict.

        Args:
            tensors: one for each of `in_keys`.

        Returns:
            One for each of `out_keys`: what every part writes.

        Raises:
            TypeError: a part can only be called on a tensordict, or there are more or fewer
                tensors than `in_keys`.
        """
        in_keys = self.in_keys
        if len(tensors) != len(in_keys):
            msg = f"step takes one tensor for each of {in_keys}: got {len(tensors)}"
            raise TypeError(msg)
        values: dict[NestedKey, Any] = dict(zip(in_keys, tensors, strict=True))
        plan = self._planned()
        try:
            plan.run(values)
        except Exception as error:
            note(error, f"{type(self).__name__}.step", tensors, in_keys)
            raise
        return tuple([values[key] for key in self.out_keys])

    def step_calls(self) -> list[Call]:
        """List what the parts call, for a loop that steps many times.

        Returns:
            Functions on tensors, each with the keys of its inputs and of its outputs, to be called
            one after another. They do what `step` does until a part is replaced or a hook added:
            ask anew for each batch.

        Raises:
            TypeError: a part can only be called on a tensordict.
        """
        if not _is_sequence(self):
            return super().step_calls()
        return list(self._planned().calls)

    def _planned(self) -> CallPlan:
        plan: CallPlan | None = self.__dict__.get("_plan")
        if plan is None or plan.stale():
            plan = plan_of(self)
            self.__dict__["_plan"] = plan
        return plan

    def _direct(self) -> bool:
        if not super()._direct():
            return False
        try:
            return self._planned().exact
        except TypeError:
            return False


def plan_of(sequence: Any) -> CallPlan:
    """Flatten a sequence of tensordict modules; raise if a part needs a tensordict."""
    visited: list[nn.Module] = [sequence, sequence.module]
    parts = [part for child in _children(sequence) for part in _parts(child, visited)]
    modules: list[Any] = [each._modules for each in visited]
    children = [tuple(each.values()) for each in modules]
    hooks = tuple(hook for module in visited[2:] for hook in _hooks(module))
    exact = all(isinstance(part, TensorStep) or _is_stock(part) for part in parts)
    calls = [call for part in parts for call in _calls(part)]
    return CallPlan(calls, modules, children, hooks, exact)


def _calls(part: Any) -> list[Call]:
    if isinstance(part, TensorStep) and not isinstance(part, PlannedStep):
        return part.step_calls()
    call = part.module if _is_stock(part) else part.step
    return [(call, list(part.in_keys), list(part.out_keys))]


def _children(sequence: Any) -> Iterable[Any]:
    children = sequence.module
    return children.values() if isinstance(children, nn.ModuleDict) else children


def _parts(module: Any, visited: list[nn.Module]) -> Iterator[Any]:
    kind = type(module)
    visited.append(module)
    if ordinary(module) and not any(_hooks(module)):
        if _is_sequence(module):
            visited.append(module.module)
            for child in _children(module):
                yield from _parts(child, visited)
            return
        # of the class: an instance forwards unknown names to the module inside
        if _is_stock(module) or callable(getattr(kind, "step", None)):
            yield module
            return
    msg = (
        f"{kind.__name__} can only be called on a tensordict: it offers no step, or has hooks or "
        "options of its own. Call the policy on a tensordict, or step its parts one by one."
    )
    raise TypeError(msg)


def _is_sequence(module: Any) -> bool:
    """Tell whether a module runs its children in order and writes all of their outputs."""
    kind = type(module)
    if not isinstance(module, PlannedStep):
        return bool(kind.forward is TensorDictSequential.forward)
    stock = kind.step is PlannedStep.step and kind.forward is TensorStep.forward
    return stock and ordinary(module) and getattr(module, "_requires_sample", True)


def _is_stock(module: Any) -> bool:
    return type(module).forward is TensorDictModule.forward and "_" not in module.out_keys


def _hooks(module: nn.Module) -> tuple[dict[Any, Any], ...]:
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks


def _sequence_of(parts: list[Any]) -> TensorDictSequential:
    """A sequence of shared parts; with a distribution if the last part has one."""
    *first, last = parts or [None]
    if isinstance(last, ProbabilisticTensorDictSequential):
        first, last = (
            [*first, *last.module[:-1]],
            last.module[-1],
        )  # its distribution becomes that of the sequence
    if isinstance(last, ProbabilisticTensorDictModule):
        return ProbabilisticTensorDictSequential(*first, last)
    return TensorDictSequential(*parts)
