"""What a tensordict module computes, without a tensordict written for each of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, skip_existing
from torch import Tensor, nn

from rl_tensordict import (
    Call,
    ModuleCalls,
    NestedKey,
    StepSequence,
    as_key,
    as_tuple,
    copied,
    leaves,
    note_call,
    require,
)
from rl_tensordict.torch_internals import parameters_of
from rl_tensordict.types import KeyPath
from rl_value.scan.block_scan import is_transformed

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


def require_network(name: str, network: Any, method: str = "forward") -> None:
    """Raise for what is no tensordict module, and for none."""
    if network is None:
        msg = f"{name}: expected a module with in_keys and out_keys, got None."
        raise TypeError(msg)
    check_network(name, network, method)


def held_out(network: nn.Module | None) -> AbstractContextManager[Any]:
    """Treat the parameters of a network as constants; gradients reach its inputs."""
    if network is None or not torch.is_grad_enabled():
        return nullcontext()
    # what `torch.func` differentiates says that it requires no gradients
    learns = is_transformed() or any(one.requires_grad for one in network.parameters())
    if not learns:
        return nullcontext()
    if not torch.compiler.is_compiling() and not has_flat_weights(network):
        return _constant_parameters(network)
    values = TensorDict.from_module(network).detach()
    # otherwise tensordict would make parameters of them, that gradients are computed for
    constants: AbstractContextManager[Any] = values.to_module(network, preserve_module_state=False)
    return constants


def has_flat_weights(network: nn.Module) -> bool:
    """Whether some module keeps its parameters in a list of its own too."""
    return any(isinstance(module, nn.RNNBase) for module in network.modules())


@contextmanager
def _constant_parameters(network: nn.Module) -> Iterator[None]:
    """Replace the parameters of a network by constants for a while."""
    # several times faster than by a tensordict of them, which matters in a loss of small networks
    places = [
        (parameters_of(module), name, value)
        for module in network.modules()
        for name, value in parameters_of(module).items()
        if value is not None and (value.requires_grad or is_transformed())
    ]
    held: dict[int, Tensor] = {}  # a parameter in two places stays one
    for owner, name, value in places:
        owner[name] = held.setdefault(id(value), value.detach())  # type: ignore[assignment]
    try:
        yield
    finally:
        for owner, name, value in places:
            owner[name] = value


def output_of(network: TensorDictModuleBase, batch: TensorDictBase, wanted: NestedKey) -> Tensor:
    """Evaluate a network on a batch without writing to the batch."""
    return output_on_batch(network, ModuleCalls(network, watch=False), copied(batch), wanted)


def output_on_batch(
    network: TensorDictModuleBase, calls: ModuleCalls, batch: TensorDictBase, wanted: NestedKey
) -> Tensor:
    """One output of a network that writes to a batch of ours."""
    made: Any = require(noted(network, batch, calls), wanted)
    if not isinstance(made, Tensor):
        msg = f"{wanted!r}: expected a tensor from the network, got {type(made).__name__}."
        raise TypeError(msg)
    if made.ndim <= batch.batch_dims:  # the `forward` of a critic refuses it
        whole = ModuleCalls(network, watch=False, reason="it checks values")
        made = require(noted(network, batch, whole), wanted)
    found: Tensor = made
    return found


def explain_call(network: TensorDictModuleBase) -> str:
    """Say how a network is called, and why."""
    explain = getattr(type(network), "explain_call", None)  # of the losses' own networks
    if explain is not None:
        said: str = explain(network)
        return said
    return f"{type(network).__name__} called {_way_of(ModuleCalls(network, watch=False).calls)}"


def explain_distribution(actor: TensorDictModuleBase) -> str:
    """Say how the distribution of an actor is made, and why."""
    name = f"the distribution of {type(actor).__name__}"
    if not (isinstance(actor, StepSequence) and actor.runs_parts()):
        return f"{name}, by a get_dist of its own, on a tensordict"
    network = ModuleCalls(actor, inside=True, watch=False).calls[:-1]
    return f"{name}, its network called {_way_of(network)}"


def _way_of(calls: Sequence[Call]) -> str:
    """Whether calls are made on tensors or on a tensordict, and why."""
    others = [call for call in calls if not call.is_exact]
    if not others and not skip_existing():
        return "on tensors"
    reason = "skip_existing is set"
    if others:
        reason = others[0].reason or f"{type(others[0].module).__name__} reads markers"
        if len(calls) > len(others):
            reason += f"; {len(calls) - len(others)} of {len(calls)} parts on tensors"
    return f"on a tensordict ({reason})"


def noted(
    network: TensorDictModuleBase, batch: TensorDictBase, calls: ModuleCalls | None = None
) -> TensorDictBase:
    """Call a network by its calls; a note on an exception names the call and its inputs."""
    # parts that are calls on tensors are called so: a write of tensordict takes longer than many
    calls = calls or ModuleCalls(network, watch=False)
    try:
        made: TensorDictBase = network(batch) if skip_existing() else calls.write(batch)
    except Exception as error:
        note_failure(error, network, calls, dict(leaves(batch)))
        raise
    return made


def note_failure(
    error: Exception, network: Any, calls: ModuleCalls, inputs: Mapping[KeyPath, Any]
) -> None:
    """Add a note on the call that failed, or on the network if it is called as a whole."""
    found = calls.find_failure(inputs) if calls.is_forward() else None
    given = {key: inputs.get(as_tuple(key)) for key in network.in_keys}
    failed, given = found or (network, given)
    note_network(error, failed.out_keys or [], given)


def note_network(error: Exception, out_keys: Iterable[Any], given: Mapping[Any, Any]) -> None:
    """Add a note on the network that raised an error: what it writes, and its inputs."""
    written, read = ([as_key(as_tuple(key)) for key in names] for names in (out_keys, given))
    note_call(error, f"the network that writes {written}", given.values(), read, ROWS)
