"""The value of states by networks that are called in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.types import KeyPath

VALUE = "state_value"


class StateValue(TensorDictModuleBase):  # type: ignore[misc]
    """Networks that value states together, as one network to what unrolls it over a batch."""

    # The networks are the loss's: they are called by a method of it, and are no submodules here.
    def __init__(
        self,
        networks: Sequence[TensorDictModuleBase],
        value_of: Callable[[TensorDictBase], Tensor],
    ) -> None:
        super().__init__()
        read: dict[KeyPath, NestedKey] = {}
        written: set[KeyPath] = set()
        for network in networks:
            read |= {as_tuple(k): k for k in network.in_keys if as_tuple(k) not in written}
            written |= set(map(as_tuple, network.out_keys))  # as the action of the next critics
        states = [next_key(key) for key in read if next_key(key) in written]
        self.in_keys: list[NestedKey] = list(read.values())
        self.out_keys: list[NestedKey] = [VALUE, *states]
        self.value_of = value_of
        self.names = " and ".join(type(network).__name__ for network in networks)

    def explain_call(self) -> str:
        """Say which networks are called."""
        return f"{self.names} in turn"

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the value of each state, ``[K, *G, 1]``."""
        tensordict.set(VALUE, self.value_of(tensordict))
        return tensordict
