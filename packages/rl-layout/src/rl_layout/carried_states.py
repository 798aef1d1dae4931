"""The recurrent states that modules carry from step to step, and modules that share a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from rl_layout.arguments import check_mapping
from rl_layout.keys import next_key
from rl_tensordict import as_key, as_tuple
from rl_tensordict.arguments import shown
from rl_tensordict.types import KeyPath


def carried_states(module: Any) -> set[KeyPath]:
    """Find the states that a module carries: what it reads, and writes for the next step."""
    in_keys, out_keys = getattr(module, "in_keys", None), getattr(module, "out_keys", None)
    if isinstance(in_keys, list | tuple) and isinstance(out_keys, list | tuple):
        written = set(map(as_tuple, out_keys))
        # read at the root and written under "next": the next step reads it again
        return {key for key in map(as_tuple, in_keys) if next_key(key) in written}
    if callable(getattr(type(module), "make_tensordict_primer", None)):
        primers = getattr(module.make_tensordict_primer(), "primers", None)
        if primers is not None:
            return {as_tuple(key) for key in primers.keys(include_nested=True, leaves_only=True)}
    return set()


def refuse_shared_states(networks: Mapping[str, Any]) -> None:
    """Raise for two modules that carry their states under one key, and so overwrite each other's.

    A module that is part of several networks counts once: a shared backbone has one state.

    Args:
        networks: networks of one agent by the name of their role; None is let through.

    Raises:
        ValueError: two modules that differ carry a state under one key. Both are named.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> def cell():
        ...     return TensorDictModule(nn.GRUCell(2, 3), ["x", "h"], [("next", "h")])
        >>> shared = cell()
        >>> refuse_shared_states({"actor": shared, "critic": shared})
        >>> try:
        ...     refuse_shared_states({"actor": cell(), "critic": cell()})
        ... except ValueError as error:
        ...     print(str(error)[59:105])
        carry their recurrent state under one key, 'h'
    """
    check_mapping(networks, "networks", "modules by the name of their role, as {'actor': ...}")
    owners: dict[KeyPath, tuple[str, nn.Module]] = {}
    for path, module, states in _carriers(networks):
        for key in sorted(states):
            if key not in owners:
                owners[key] = path, module
            elif not _same_network(owners[key][1], module):
                _refuse(key, owners[key], (path, module))


def _carriers(networks: Mapping[Any, Any]) -> Iterator[tuple[str, nn.Module, set[KeyPath]]]:
    """Each module that carries states of its own, not those of a module inside it."""
    seen: set[nn.Module] = set()
    for role, network in networks.items():
        if not isinstance(network, nn.Module):
            continue
        if not isinstance(role, str):
            msg = f"networks: expected the name of a role, as 'actor', got {shown(role)}."
            raise TypeError(msg)
        # `seen` is one set for all roles: a module shared by two networks comes once
        for path, module in network.named_modules(memo=seen, prefix=role):
            states = carried_states(module)
            if states:
                inner = (part for part in module.modules() if part is not module)
                # a sequence has the keys of its parts: the state belongs to the innermost module
                states = states.difference(*map(carried_states, inner))
            if states:
                yield path, module, states


def _same_network(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules compute the same: one network, read at the same keys."""
    # two wrappers of one network share its parameters and overwrite with equal states
    parameters = [[id(tensor) for tensor in module.parameters()] for module in (one, other)]
    read = [[as_tuple(key) for key in getattr(module, "in_keys", ())] for module in (one, other)]
    return bool(parameters[0]) and parameters[0] == parameters[1] and read[0] == read[1]


def _refuse(key: KeyPath, *owners: tuple[str, nn.Module]) -> None:
    first, second = (f"{path!r} ({type(module).__name__})" for path, module in owners)
    mine, other = f"actor_{key[-1]}", f"critic_{key[-1]}"
    msg = (
        f"{first} and {second} carry their recurrent state under one key, {as_key(key)!r}: each "
        "overwrites the state of the other. Name the states of each in in_keys and out_keys, as "
        f"{mine!r} with ('next', {mine!r}), and {other!r} with ('next', {other!r}); or use one "
        "module in both places."
    )
    raise ValueError(msg)
