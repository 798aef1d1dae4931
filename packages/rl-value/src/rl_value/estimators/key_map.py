"""The keys that estimators and losses read and write, set by `set_keys`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rl_tensordict import NestedKey, as_tuple


class KeyMap(Mapping[str, NestedKey]):
    """A key for each role of an entry."""

    def __init__(self, **defaults: NestedKey) -> None:
        self._keys: dict[str, NestedKey] = dict(defaults)

    def set(self, **given: NestedKey | None) -> None:
        """Replace keys; None keeps the current one."""
        for name, key in given.items():
            if name not in self._keys:
                msg = f"there is no entry {name!r} here: there are {', '.join(self._keys)}."
                raise KeyError(msg)
            if key is None:
                continue
            try:
                as_tuple(key)
            except TypeError as error:
                msg = f"{name}: {error}"
                raise ValueError(msg) from None
            self._keys[name] = key

    def __getitem__(self, name: str) -> NestedKey:
        return self._keys[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
