"""Tensordict modules called on plain tensors, without a tensordict in between.

`TensorDictModule.forward` costs tens of microseconds per key, apart from its network. A module with
a `step` avoids that: it takes the tensors of its `in_keys` and returns those of its `out_keys`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, skip_existing
from torch import Tensor

from rl_policies.modules.explained import note
from rl_tensordict import NestedKey, require

Call: TypeAlias = tuple[Callable[..., Any], list[NestedKey], list[NestedKey]]


class TensorStep(TensorDictModuleBase):  # type: ignore[misc]
    """A tensordict module whose `forward` reads, calls `step` and writes, and no more.

    Where more is asked for (tensors or keywords instead of a tensordict, another output,
    `set_skip_existing`, selected keys), tensordict's own `forward` runs.
    """

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the module on tensors.

        Args:
            tensors: one for each of `in_keys`.

        Returns:
            One for each of `out_keys`.
        """
        raise NotImplementedError

    def step_calls(self) -> list[Call]:
        """List what `step` calls, for a loop that steps many times.

        Returns:
            Functions on tensors, each with the keys of its inputs and of its outputs, to be called
            one after another. They do what `step` does until a part is replaced or a hook added:
            ask anew for each batch.

        Example:
            >>> from torch import nn
            >>> from rl_policies import ValueOperator
            >>> [keys for _, *keys in ValueOperator(nn.Linear(3, 1)).step_calls()]
            [[['observation'], ['state_value']]]
        """
        return [(self.step, list(self.in_keys), list(self.out_keys))]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Read the inputs from a tensordict, and write the outputs to it.

        Args:
            args: a tensordict, which is returned; or tensors in the order of `in_keys`.
            kwargs: what tensordict's modules take.

        Returns:
            The tensordict, or the outputs where tensors were given.

        Raises:
            KeyError: an input is missing.
        """
        if kwargs or len(args) != 1 or not isinstance(args[0], TensorDictBase):
            try:
                return super().forward(*args, **kwargs)
            except Exception as error:
                note(error, type(self).__name__, [*args, *kwargs.values()], self.in_keys)
                raise
        try:
            return self._write(args[0]) if self._direct() else super().forward(args[0])
        except Exception as error:
            note(error, type(self).__name__, args)
            raise

    def _direct(self) -> bool:
        """Tell whether `forward` is `step` between reads and writes."""
        return not skip_existing() and ordinary(self)

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        return write_step(self, tensordict)

    def __getstate__(self) -> dict[str, Any]:
        # a plan holds live dictionaries of the original: a copy makes its own
        state = self.__dict__.copy()
        state.update(super().__getstate__())
        state.pop("_plan", None)
        return state


def write_step(module: Any, tensordict: TensorDictBase) -> TensorDictBase:
    """Read the inputs of a module, call its `step`, and write the outputs."""
    outputs = module.step(*[read(tensordict, key) for key in module.in_keys])
    for key, value in zip(module.out_keys, outputs, strict=True):
        tensordict.set(key, value)
    return tensordict


def read(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Read an input; raise with the keys that exist if it is missing."""
    value = tensordict.get(key, None)
    # require has the message, and costs more
    return require(tensordict, key) if value is None else value


def ordinary(module: Any) -> bool:
    """Tell whether a module takes tensors by position and adds all outputs in place."""
    state = module.__dict__
    return not (
        state.get("_out_keys_apparent", state.get("_out_keys")) != state.get("_out_keys")
        or state.get("_kwargs")
        or state.get("method")
        or state.get("method_kwargs")
        or state.get("_get_kwargs")
        or state.get("_select_before_return")
        or state.get("partial_tolerant")
        or state.get("inplace", True) not in (True, None)
    )


def outputs_of(outputs: Any, out_keys: list[NestedKey]) -> tuple[Any, ...]:
    """Return the outputs of a network, a tensor, tuple or mapping, as one tensor per key."""
    if isinstance(outputs, Tensor) and len(out_keys) == 1:
        return (outputs,)
    if isinstance(outputs, dict | TensorDictBase):
        outputs = tuple(outputs[key] for key in out_keys)
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(tensors) != len(out_keys):
        msg = f"expected a tensor for each of {out_keys}: the network returned {len(tensors)}"
        raise ValueError(msg)
    return tensors
