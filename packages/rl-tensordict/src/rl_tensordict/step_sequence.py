"""Sequences of tensordict modules whose parts run on plain tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_tensordict.entries import require
from rl_tensordict.module_calls import ModuleCalls, Values, children_of
from rl_tensordict.nested_keys import as_key, as_tuple
from rl_tensordict.notes import note_call
from rl_tensordict.tensor_step import TensorStep, is_ordinary, write
from rl_tensordict.types import StepCall


class StepSequence(TensorStep):
    """A sequence of tensordict modules that runs its parts on plain tensors.

    To be listed before tensordict's sequence among the base classes. The calls are listed on the
    first step, and again after modules were replaced or hooks added.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule, TensorDictSequential
        >>> class Sequence(StepSequence, TensorDictSequential):
        ...     pass
        >>> net = TensorDictModule(torch.nn.Linear(3, 4), ["observation"], ["hidden"])
        >>> head = TensorDictModule(torch.nn.Linear(4, 2), ["hidden"], ["action"])
        >>> [tensor.shape[1] for tensor in Sequence(net, head).step(torch.zeros(5, 3))]
        [4, 2]
    """

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
        calls = self._flat_calls()
        values: Values = {as_tuple(key): x for key, x in zip(in_keys, tensors, strict=True)}
        try:
            calls.run(values)
        except Exception as error:
            note_call(error, f"{type(self).__name__}.step", tensors, in_keys)
            raise
        return tuple([values[as_tuple(key)] for key in self.out_keys])

    def step_parts(self) -> Iterable[Any] | None:
        """List the modules that `step` runs one after another.

        Returns:
            The modules; None if a subclass has a step or forward of its own.
        """
        kind = type(self)
        is_own = kind.step is not StepSequence.step or kind.forward is not TensorStep.forward
        return None if is_own else children_of(self)

    def step_calls(self) -> list[StepCall]:
        """List what the parts call, for a loop that steps many times.

        Returns:
            Functions on tensors, each with the keys of its inputs and of its outputs, to be called
            one after another. They do what `step` does until a part is replaced or a hook added:
            ask anew for each batch.

        Raises:
            TypeError: a part can only be called on a tensordict.
        """
        if self.step_parts() is None or not is_ordinary(self):
            return super().step_calls()
        return [
            (call.function, [*map(as_key, call.in_keys or [])], [*map(as_key, call.out_keys or [])])
            for call in self._flat_calls().calls
        ]

    def runs_parts(self) -> bool:
        """Tell whether `forward` on a tensordict is the parts, one after another.

        Returns:
            False where options say otherwise, or `set_skip_existing` is set.
        """
        return super()._is_direct()

    def write_parts(self, tensordict: TensorDictBase, last: int | None = None) -> TensorDictBase:
        """Run the calls up to `last`, all if None, on a tensordict; see `runs_parts`.

        Args:
            tensordict: holds what `in_keys` names.
            last: how many calls, as the end of a slice; not checked.

        Returns:
            The tensordict with what the calls write.

        Raises:
            KeyError: an input is missing.
        """
        return self._calls().write(tensordict, last)

    def _calls(self) -> ModuleCalls:
        calls: ModuleCalls | None = self.__dict__.get("_module_calls")
        if calls is None or calls.is_stale():
            calls = ModuleCalls(self, inside=True)
            self.__dict__["_module_calls"] = calls
        return calls

    def _flat_calls(self) -> ModuleCalls:
        calls = self._calls()
        if calls.reason:
            advice = "Call the policy on a tensordict, or step its parts one by one."
            msg = f"{calls.reason}. {advice}"
            raise TypeError(msg)
        return calls

    def _is_direct(self) -> bool:
        return self.runs_parts() and self._calls().is_forward()

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.step_parts() is None:
            return super()._write(tensordict)
        calls: ModuleCalls = self.__dict__["_module_calls"]  # made by `_is_direct`
        values = calls.run({as_tuple(key): require(tensordict, key) for key in self.in_keys})
        for key in calls.out_keys or []:  # `self.out_keys` does not follow keys of a part
            write(tensordict, key, values[key])
        return tensordict

    def __getstate__(self) -> dict[str, Any]:
        # the calls hold live dictionaries of the original: a copy lists its own
        state = self.__dict__.copy()
        state.update(super().__getstate__())
        state.pop("_module_calls", None)
        return state
