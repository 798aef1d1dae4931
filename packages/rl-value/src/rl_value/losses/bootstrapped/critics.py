"""Critics of actions: several in one module, and what they say of some actions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl_layout import keys
from rl_tensordict import NestedKey, UnfitValue, as_key, as_tuple, copied, require
from rl_tensordict.arguments import check_whole
from rl_tensordict.types import KeyPath
from rl_value.estimators.bootstrapping.next_values import roles_of
from rl_value.networks import explain_call, noted, require_network


class CriticList(TensorDictModuleBase):  # type: ignore[misc]
    """Critics that are called one after the other; their values are stacked ``[*B, num, 1]``."""

    def __init__(self, critics: Sequence[TensorDictModuleBase]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)
        self.num_members = len(critics)
        read = [key for critic in critics for key in critic.in_keys]
        self.in_keys: list[NestedKey] = list(dict.fromkeys(read))
        self.states: list[list[NestedKey]] = [
            [key for key in critic.out_keys if as_tuple(key)[0] == keys.NEXT] for critic in critics
        ]
        self.out_keys: list[NestedKey] = [value_key_of(critics[0]), *chain(*self.states)]

    def explain_call(self) -> str:
        """Say how the critics are called."""
        return f"{self.num_members} critics, each {explain_call(self.critics[0])}"

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the values of all critics, and the recurrent states of each."""
        found = [noted(critic, copied(tensordict)) for critic in self.critics]
        key = self.out_keys[0]
        tensordict.set(key, torch.stack([require(one, key) for one in found], -2))
        for states, one in zip(self.states, found, strict=True):
            for state in states:
                tensordict.set(state, require(one, state))
        return tensordict


def critics_of(network: Any, num: int | None, default: int) -> TensorDictModuleBase:
    """Critics in one module: the given ones, or `num` of the given architecture."""
    if num is not None:
        check_whole("num_qvalue_nets", num, 1)
    if isinstance(network, list | tuple | nn.ModuleList):
        return _checked_list(list(network), num)
    require_network("qvalue_network", network)
    members = members_of(network)
    if members is not None:
        if num is not None and num != members:
            msg = f"num_qvalue_nets={num}, and qvalue_network has {members} critics. Leave it out."
            raise ValueError(msg)
        return network
    if any(is_lazy(one) for one in network.parameters()):
        msg = "qvalue_network has a lazy layer: give its size, or call it once before."
        raise ValueError(msg)
    num = default if num is None else num
    together = getattr(network, "ensemble", None)
    if callable(together):
        made: TensorDictModuleBase = together(num)
        return made
    if roles_of(network).states:
        msg = (
            "qvalue_network keeps a recurrent state, which its copies would share: let the "
            "recurrent part be one, followed by several heads, as in TensorDictSequential(gru, "
            "ValueOperator(...).ensemble(2))."
        )
        raise ValueError(msg)
    return CriticList([_drawn_anew(network) for _ in range(num)])


def value_key_of(network: TensorDictModuleBase) -> NestedKey:
    """Where critics write their values: the usual place, else the last that is no state."""
    written: list[NestedKey] = list(network.out_keys)
    usual = [key for key in written if as_tuple(key)[-1] in ("state_action_value", "action_value")]
    others = [key for key in written if as_tuple(key)[0] != keys.NEXT]
    return (usual or others or written)[-1]


def members_of(network: nn.Module) -> int | None:
    """How many critics a network is, if one of its modules says so."""
    found = (getattr(module, "num_members", None) for module in network.modules())
    return next((num for num in found if isinstance(num, int)), None)


def refuse_memory_of_actions(network: TensorDictModuleBase, action: KeyPath) -> None:
    """Raise for a recurrent part that reads the action, as other actions are tried there."""
    for module in network.modules():
        read = [as_tuple(key) for key in getattr(module, "in_keys", None) or ()]
        parts = any(getattr(one, "in_keys", None) for one in list(module.modules())[1:])
        if parts or not isinstance(module, TensorDictModuleBase) or not roles_of(module).states:
            continue
        if action in read:
            msg = (
                f"a recurrent part of qvalue_network reads {as_key(action)!r}, and would remember "
                "actions that were not taken: let it read observations (and the action before, "
                "under a name of its own), and the layers after it the action."
            )
            raise ValueError(msg)


def action_values(
    critics: TensorDictModuleBase,
    rows: TensorDictBase,
    action: tuple[NestedKey, Tensor] | None,
    key: NestedKey,
) -> Tensor:
    """What critics say of steps, with an action in the place of theirs: ``[*B, num, 1]``."""
    given = copied(rows)
    if action is not None:
        given.set(*action)
    values: Tensor = require(noted(critics, given), key)
    return values


def check_values(values: Tensor, key: NestedKey, target: Tensor) -> None:
    """Hold values of several critics to the shape of their targets ``[*B, 1]``."""
    shape = target.shape
    fits = values.ndim == target.ndim + 1 and values.shape[:-2] == shape[:-1]
    if not fits or values.shape[-1] != shape[-1]:
        msg = (
            f"{key!r}: expected values of critics, {[*shape[:-1], 'critics', shape[-1]]}, got "
            f"{list(values.shape)}. Each critic gives {list(shape)}, as the reward."
        )
        raise UnfitValue(msg)


def _checked_list(critics: list[Any], num: int | None) -> TensorDictModuleBase:
    if not critics or (num is not None and num != len(critics)):
        msg = f"qvalue_network: expected {num or 'some'} critics, got a list of {len(critics)}."
        raise ValueError(msg)
    for critic in critics:
        require_network("qvalue_network", critic)
    shapes = [_shapes(critic) for critic in critics]
    for place, other in enumerate(shapes):
        for name in sorted({*shapes[0], *other}):
            one, two = shapes[0].get(name), other.get(name)
            if one != two:
                msg = (
                    f"qvalue_network: critics have one architecture, and {name!r} is {one} in "
                    f"critic 0 and {two} in critic {place}."
                )
                raise ValueError(msg)
    return CriticList(critics)


def _shapes(critic: nn.Module) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in critic.state_dict().items()}


def _drawn_anew(network: TensorDictModuleBase) -> TensorDictModuleBase:
    """A copy with parameters of its own."""
    made = deepcopy(network)
    for name, module in made.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            msg = f"{name!r} of qvalue_network is a {type(module).__name__}, whose parameters "
            msg += "cannot be drawn anew: pass a list of critics."
            raise ValueError(msg)
        reset()
    return made
