"""The keys that estimators and losses read and write, set by `set_keys`."""

from __future__ import annotations

from typing import Any, Self

from tensordict.nn import TensorDictModuleBase

from rl_layout import keys
from rl_tensordict import NestedKey, UnknownName, as_tuple
from rl_tensordict.arguments import refuse_unknown

LEGACY = ("advantage_key", "value_target_key", "value_key")


class KeyMap(dict[str, NestedKey]):
    """A key for each role of an entry."""

    @classmethod
    def of(cls, network: TensorDictModuleBase | None = None, **others: NestedKey) -> Self:
        """Default keys, and others; a network with one output names the value."""
        entries = cls(
            advantage="advantage",
            value_target="value_target",
            value="state_value",
            reward=keys.REWARD,
            done=keys.DONE,
            terminated=keys.TERMINATED,
            steps_to_next_obs="steps_to_next_obs",
            sample_log_prob="sample_log_prob",
            **others,
        )
        written = [] if network is None else list(network.out_keys)
        if written and "state_value" not in written and len(written) == 1:
            entries.set(value=written[0])
        return entries

    def __getattr__(self, name: str) -> NestedKey:
        """A key by its role: `keys.value`."""
        if name in self:
            return self[name]
        msg = f"there is no entry {name!r} here: there are {', '.join(self)}."
        raise AttributeError(msg)

    def set(self, **given: NestedKey | None) -> None:
        """Replace keys; None keeps the current one."""
        for name, key in given.items():
            if name not in self:
                msg = f"there is no entry {name!r} here: there are {', '.join(self)}."
                raise UnknownName(msg)
            if key is None:
                continue
            check_key(name, key)
            self[name] = key


def check_key(name: str, key: Any) -> None:
    """Raise for the key of an entry that is none."""
    try:
        as_tuple(key)
    except TypeError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from None


def refuse_keys(given: dict[str, Any]) -> None:
    """Raise for arguments that nothing takes; keys are set by `KeyMap.set`."""
    for name in given:
        if name in LEGACY:
            msg = f"{name} is not an argument: call set_keys({name.removesuffix('_key')}=...)."
            raise RuntimeError(msg)
    refuse_unknown(given)
