"""What a tensordict module computes, without a tensordict written for each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, skip_existing
from torch import Tensor, nn

from rl_tensordict import (
    ModuleCalls,
    NestedKey,
    as_key,
    as_tuple,
    build,
    find,
    nest,
    note_call,
    require,
)
from rl_tensordict.types import KeyPath

ROWS = "Steps are its rows: look at their shapes and dtypes."


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
    # called on tensors where that is what its forward does: a write to a tensordict costs more than
    # a small network; anything else is called as it is
    calls = ModuleCalls(network, watch=False)
    made = _direct_output(calls, partial(find, batch), wanted, batch.batch_dims)
    if made is not None:
        return made
    return _written(network, calls, batch.copy(), wanted)


def outputs_from(
    network: TensorDictModuleBase,
    given: Iterable[tuple[Mapping[KeyPath, Tensor], int]],  # inputs [K, ...] by key, and K
    wanted: NestedKey,
) -> list[Tensor]:
    """Evaluate a network once for each of some inputs, as `output_of` does on a batch."""
    calls, found = ModuleCalls(network, watch=False), []
    for inputs, size in given:
        made = _direct_output(calls, inputs.get, wanted, 1)
        if made is None:
            batch = build(nest(inputs), torch.Size([size]))
            made = _written(network, calls, batch, wanted)
        found.append(made)
    return found


def explain_call(network: TensorDictModuleBase) -> str:
    """Say how a network is called, and why."""
    calls = ModuleCalls(network, watch=False)
    if calls.is_forward():
        return f"{type(network).__name__} called on tensors"
    reason = calls.reason or "its forward does more than its calls"
    return f"{type(network).__name__} called on a tensordict ({reason})"


def noted(
    network: TensorDictModuleBase, batch: TensorDictBase, calls: ModuleCalls | None = None
) -> TensorDictBase:
    """Call a network; a note on its exceptions names the network and its inputs."""
    calls = calls or ModuleCalls(network, watch=False)
    try:
        # parts that are calls on tensors are called so: tensordict's writes take longer than them
        made: TensorDictBase = network(batch) if skip_existing() else calls.write(batch)
    except Exception as error:
        given = {key: batch.get(key, None) for key in network.in_keys}
        note_network(error, network.out_keys, given)
        raise
    return made


def _written(
    network: TensorDictModuleBase, calls: ModuleCalls, batch: TensorDictBase, wanted: NestedKey
) -> Tensor:
    """One output of a network of which some part is called on a tensordict."""
    made = require(noted(network, batch, calls), wanted)
    given: object = made
    if not isinstance(given, Tensor):
        msg = f"{wanted!r}: expected a tensor from the network, got {type(given).__name__}."
        raise TypeError(msg)
    result: Tensor = made
    return result


def note_network(error: Exception, out_keys: Iterable[Any], given: Mapping[Any, Any]) -> None:
    """Add a note on the network that raised an error: what it writes, and its inputs."""
    written, read = ([as_key(as_tuple(key)) for key in names] for names in (out_keys, given))
    note_call(error, f"the network that writes {written}", given.values(), read, ROWS)


def _direct_output(
    calls: ModuleCalls, read: Callable[[KeyPath], Any], wanted: NestedKey, batch_dims: int
) -> Tensor | None:
    """The output of a network that is calls on tensors; None for others and missing outputs."""
    # also None for an output without a dimension of its own: `forward` of a critic refuses it
    if not calls.is_forward():
        return None
    inputs: dict[KeyPath, Any] = {}
    for key in calls.in_keys or []:
        value = inputs[key] = read(key)
        if value is None:
            return None
    try:
        made = calls.run(dict(inputs)).get(as_tuple(wanted))
    except Exception as error:
        failure = calls.find_failure(inputs)
        if failure is not None:
            call, given = failure
            note_network(error, call.out_keys or [], given)
        raise
    return made if isinstance(made, Tensor) and made.ndim > batch_dims else None
