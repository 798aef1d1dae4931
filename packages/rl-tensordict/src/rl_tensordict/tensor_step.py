"""Tensordict modules whose `forward` is a `step` on plain tensors between reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential, skip_existing
from torch import Tensor

from rl_tensordict.entries import put, require
from rl_tensordict.nested_keys import as_key, as_tuple
from rl_tensordict.notes import note_call
from rl_tensordict.types import KeyPath, NestedKey, StepCall


class TensorStep(TensorDictModuleBase):  # type: ignore[misc]
    """A tensordict module whose `forward` reads, calls `step` and writes, and no more.

    Where more is asked for (tensors or keywords instead of a tensordict, another output,
    `set_skip_existing`, selected keys), tensordict's own `forward` runs.

    A class of another package need not derive from it: `has_tensor_step = True` in a tensordict
    module's class says that `step` takes one tensor for each of `in_keys`, returns one for each of
    `out_keys`, and may be called in the place of `forward` to act. A `step` without that mark, such
    as that of a schedule, is never called.

    Attributes:
        has_tensor_step: the mark.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> class Doubled(TensorStep):
        ...     in_keys, out_keys = ["observation"], ["action"]
        ...
        ...     def step(self, observation):
        ...         return (2 * observation,)
        >>> Doubled()(TensorDict({"observation": torch.ones(2)}, [2]))["action"]
        tensor([2., 2.])
    """

    has_tensor_step: ClassVar[bool] = True

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the module on tensors.

        Args:
            tensors: one for each of `in_keys`.

        Returns:
            One for each of `out_keys`.
        """
        raise NotImplementedError

    def check_entries(self, entries: Mapping[KeyPath, Any]) -> None:
        """Check all entries before the first step, also the ones that are not read.

        Args:
            entries: tensors ``[*B, ...]`` by key.
        """

    def takes_tensors(self) -> bool:
        """Tell whether `step` can do what `forward` does.

        Returns:
            False where it needs a tensordict.
        """
        return True

    def step_parts(self) -> Iterable[Any] | None:
        """List the modules that `step` runs one after another.

        Returns:
            The modules; None if `step` is one call.
        """
        return None

    def step_calls(self) -> list[StepCall]:
        """List what `step` calls, for a loop that steps many times.

        Returns:
            Functions on tensors, each with the keys of its inputs and of its outputs, to be called
            one after another. They do what `step` does until a part is replaced or a hook added:
            ask anew for each batch.
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
                note_call(error, type(self).__name__, [*args, *kwargs.values()], self.in_keys)
                raise
        try:
            return self._write(args[0]) if self._is_direct() else super().forward(args[0])
        except Exception as error:
            note_call(error, type(self).__name__, args)
            raise

    def _is_direct(self) -> bool:
        """Tell whether `forward` is `step` between reads and writes."""
        return not skip_existing() and is_ordinary(self) and self.takes_tensors()

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        return write_step(self, tensordict)


def write_step(module: Any, tensordict: TensorDictBase) -> TensorDictBase:
    """Read the inputs of a module, call its `step`, and write the outputs.

    Arguments are not checked.

    Args:
        module: a tensordict module that has `step`.
        tensordict: holds the inputs.

    Returns:
        The same tensordict.

    Raises:
        KeyError: an input is missing.
    """
    outputs = module.step(*[require(tensordict, key) for key in module.in_keys])
    for key, value in zip(module.out_keys, outputs, strict=True):
        write(tensordict, key, value)
    return tensordict


def write(tensordict: TensorDictBase, key: NestedKey, value: Any) -> None:
    """Write an output, which is a tensor as a rule."""
    if isinstance(value, Tensor):
        put(tensordict, as_tuple(key), value)
    else:
        tensordict.set(key, value)


def is_ordinary(module: Any) -> bool:
    """Tell whether a module takes tensors by position and adds all outputs in place."""
    state = module.__dict__
    inplace = state.get("inplace", True)
    return not (
        state.get("_kwargs")
        or state.get("method")
        or state.get("method_kwargs")
        or state.get("_get_kwargs")
        or state.get("_select_before_return")
        or state.get("partial_tolerant")
        or state.get("_out_keys_apparent", state.get("_out_keys")) != state.get("_out_keys")
        or not state.get("_requires_sample", True)
        # None: a sequence leaves it to its parts, another module writes to a tensordict of its own
        or not (inplace is True or (inplace is None and isinstance(module, TensorDictSequential)))
    )


def outputs_of(outputs: Any, out_keys: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outputs of a network as one tensor per key.

    The keys are not checked.

    Args:
        outputs: a tensor, a tuple, or a mapping by key. For one key that the mapping lacks, the
            mapping is the output: a group.
        out_keys: the keys.

    Returns:
        The tensors.

    Raises:
        ValueError: there are more or fewer tensors than keys.
        KeyError: the mapping lacks one of several keys.

    Example:
        >>> outputs_of({"b": 2, "a": 1}, ["a", "b"])
        (1, 2)
    """
    if isinstance(outputs, Tensor) and len(out_keys) == 1:
        return (outputs,)
    if isinstance(outputs, dict | TensorDictBase):
        try:
            outputs = tuple([outputs[as_key(as_tuple(key))] for key in out_keys])
        except KeyError:
            if len(out_keys) == 1:  # the key is that of a group
                return (outputs,)
            msg = f"expected an entry for each of {[*out_keys]}: the network returned {[*outputs]}"
            raise KeyError(msg) from None
    elif outputs is None:
        outputs = ()
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(tensors) != len(out_keys):
        names = [as_key(as_tuple(key)) for key in out_keys]
        msg = f"expected a tensor for each of {names}: the network returned {len(tensors)}"
        raise ValueError(msg)
    return tensors
