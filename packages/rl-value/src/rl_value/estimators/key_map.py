"""The keys that estimators and losses read and write, set by `set_keys`."""

from __future__ import annotations

from rl_tensordict import NestedKey, as_tuple


class KeyMap(dict[str, NestedKey]):
    """A key for each role of an entry."""

    def set(self, **given: NestedKey | None) -> None:
        """Replace keys; None keeps the current one."""
        for name, key in given.items():
            if name not in self:
                msg = f"there is no entry {name!r} here: there are {', '.join(self)}."
                raise KeyError(msg)
            if key is None:
                continue
            try:
                as_tuple(key)
            except TypeError as error:
                msg = f"{name}: {error}"
                raise ValueError(msg) from None
            self[name] = key
