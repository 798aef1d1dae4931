"""The value of states by networks that are called in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_tuple
from rl_value.estimators.bootstrapping.next_values import InputRoles, roles_of

VALUE = "state_value"


class StateValue(TensorDictModuleBase):  # type: ignore[misc]
    """Networks that value states together, as one network to what unrolls it over a batch."""

    # The networks are the loss's: they are called by a method of it, and are no submodules here.
    def __init__(
        self,
        networks: Sequence[TensorDictModuleBase],
        value_of: Callable[[TensorDictBase], Tensor],
        action: NestedKey,
    ) -> None:
        super().__init__()
        read = {as_tuple(key): key for network in networks for key in network.in_keys}
        read.pop(as_tuple(action), None)  # chosen by one of them
        written = {as_tuple(key) for network in networks for key in network.out_keys}
        states = [next_key(key) for key in read if next_key(key) in written]
        self.in_keys: list[NestedKey] = list(read.values())
        self.out_keys: list[NestedKey] = [VALUE, *states]
        self.value_of = value_of

    @property
    def roles(self) -> InputRoles:
        """The roles of what they read."""
        return roles_of(self)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the value of each state, ``[K, *G, 1]``."""
        tensordict.set(VALUE, self.value_of(tensordict))
        return tensordict
