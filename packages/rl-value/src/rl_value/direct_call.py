"""What a tensordict module computes, without a tensordict written for each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from tensordict.nn.utils import skip_existing as skipping
from torch import Tensor, nn

from rl_tensordict import NestedKey, as_tuple, build, find, nest, require

Key = tuple[str, ...]
SETTINGS = ("_kwargs", "method", "method_kwargs", "_get_kwargs")  # of a module that is no plain one
PASSED_ON = ("partial_tolerant", "_select_before_return")


def check_network(name: str, network: Any, method: str = "forward") -> None:
    """Raise for what is no tensordict module."""
    if network is None:
        return
    if not isinstance(network, nn.Module) or not hasattr(network, "out_keys"):
        got = type(network).__name__
        msg = f"{name}: expected a module with in_keys and out_keys, got {got}. "
        msg += "Wrap it in a TensorDictModule."
        raise TypeError(msg)
    if not hasattr(network, method):
        msg = f"{name}: expected a module that has {method}, got {type(network).__name__}. "
        msg += "Make it a ProbabilisticTensorDictSequential."
        raise TypeError(msg)


def held_out(network: nn.Module | None) -> AbstractContextManager[Any]:
    """Treat the parameters of a network as constants; gradients reach its inputs."""
    if network is None or not torch.is_grad_enabled():
        return nullcontext()
    if not any(parameter.requires_grad for parameter in network.parameters()):
        return nullcontext()
    values = TensorDict.from_module(network).detach()
    # otherwise tensordict would make parameters of them, that gradients are computed for
    constants: AbstractContextManager[Any] = values.to_module(network, preserve_module_state=False)
    return constants


def output_of(network: TensorDictModuleBase, batch: TensorDictBase, wanted: NestedKey) -> Tensor:
    """Evaluate a network on a batch without writing to the batch."""
    # A stock TensorDictModule, or a sequence of them, is called as module.module(*tensors): a write
    # to a tensordict costs more than a small network. Anything else is called as it is.
    made = _made_by_stock(network, partial(find, batch), wanted)
    if made is not None:
        return made
    return _written(network, batch.copy(), wanted)


def output_from(
    network: TensorDictModuleBase, inputs: Mapping[Key, Tensor], size: int, wanted: NestedKey
) -> Tensor:
    """Evaluate a network on tensors of one length, as `output_of` does on a batch."""
    made = _made_by_stock(network, inputs.get, wanted)
    if made is not None:
        return made
    batch = build(nest(inputs), torch.Size([size]))
    return _written(network, batch, wanted)


def noted(network: TensorDictModuleBase, batch: TensorDictBase) -> TensorDictBase:
    """Call a network; a note on its exceptions names the network and its inputs."""
    try:
        made: TensorDictBase = network(batch)
    except Exception as error:
        error.add_note(
            note_of_call(network, {key: batch.get(key, None) for key in network.in_keys})
        )
        raise
    return made


def _written(network: TensorDictModuleBase, batch: TensorDictBase, wanted: NestedKey) -> Tensor:
    """One output of a network that is called through its tensordict interface."""
    made = require(noted(network, batch), wanted)
    given: object = made
    if not isinstance(given, Tensor):
        msg = f"{wanted!r}: expected a tensor from the network, got {type(given).__name__}."
        raise TypeError(msg)
    result: Tensor = made
    return result


def note_of_call(network: Any, given: Mapping[NestedKey, Any]) -> str:
    """A note on an exception: the network that raised it, and its inputs."""
    shown = [
        f"{key!r} {list(value.shape)} {value.dtype}"
        if isinstance(value, Tensor)
        else f"{key!r} {type(value).__name__}"
        for key, value in given.items()
    ]
    return (
        f"raised by the network that writes {list(network.out_keys)}, which was given "
        f"{', '.join(shown) or 'nothing'}. Steps are its rows: look at their shapes and dtypes."
    )


def _made_by_stock(
    network: TensorDictModuleBase, read: Callable[[Key], Any], wanted: NestedKey
) -> Tensor | None:
    """The output of a network of stock modules; None for other networks and missing outputs."""
    parts = _parts(network)
    found = None if parts is None else run(parts, read)
    made = None if found is None else found.get(as_tuple(wanted))
    return made if isinstance(made, Tensor) else None


def _parts(network: Any) -> list[TensorDictModule] | None:
    """The stock modules that a network consists of; None if it does anything else."""
    kind = TensorDictSequential
    if isinstance(network, kind) and isinstance(network.module, nn.ModuleList):
        as_they_are = type(network).forward is kind.forward and not has_hooks(network)
        settings = any(network.__dict__.get(name) for name in PASSED_ON)
        return stock(list(network.module)) if as_they_are and not settings else None
    return stock([network])


def stock(parts: list[Any]) -> list[TensorDictModule] | None:
    """The modules if they only call what they wrap; None otherwise."""
    return parts if not skipping() and all(map(_is_stock, parts)) else None


def _is_stock(part: Any) -> bool:
    kind = TensorDictModule
    return (
        isinstance(part, kind)
        and type(part).forward is kind.forward
        and type(part).__call__ is kind.__call__
        and not any(part.__dict__.get(name) for name in SETTINGS)
        and not has_hooks(part)
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def run(parts: list[TensorDictModule], read: Callable[[Key], Any]) -> dict[Key, Any] | None:
    """Call `stock` parts one after the other."""
    scope: dict[Key, Any] = {}
    for part in parts:
        names = [as_tuple(key) for key in part.in_keys]
        given = [scope[name] if name in scope else read(name) for name in names]
        if any(value is None for value in given):
            return None
        try:
            made = part.module(*given)
        except Exception as error:
            error.add_note(note_of_call(part, dict(zip(part.in_keys, given, strict=True))))
            raise
        if isinstance(made, Mapping | TensorDictBase):
            return None
        values = made if isinstance(made, tuple) else (made,)
        if len(values) != len(part.out_keys):
            return None
        scope.update(zip(map(as_tuple, part.out_keys), values, strict=True))
    return scope
