"""The leaves of a Gymnasium space: what is in its dictionaries and tuples, by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import gymnasium
from gymnasium import spaces

from rl_layout import keys

Space = gymnasium.Space[Any]

RESERVED = (keys.NEXT, keys.REWARD, *keys.DONE_KEYS, "_reset")
"""Names at the root of a step that are neither observations nor actions."""


class SpaceLeaf(NamedTuple):
    """A leaf space, with the key and the path of its values."""

    key: tuple[str, ...]  # of the tensordict entry; parts of a tuple are named "0", "1", ...
    path: tuple[Any, ...]  # of the value in nested dictionaries and tuples
    space: Space


def leaves_of_space(space: Space, name: str) -> list[SpaceLeaf]:
    """List the leaf spaces, those of a `Dict` under their own names."""
    key = () if isinstance(space, spaces.Dict) else (name,)
    return list(_leaves(space, key, ()))


def _leaves(space: Space, key: tuple[str, ...], path: tuple[Any, ...]) -> Iterator[SpaceLeaf]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield SpaceLeaf(key, path, space)
        return
    for part, inner in parts_of_space(space):
        yield from _leaves(inner, (*key, str(part)), (*path, part))


def parts_of_space(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[Any, Space]]:
    """List the parts of a space, each by what its value is indexed with."""
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    named: dict[Any, Space] = dict(space.spaces)
    for name in named:
        if not isinstance(name, str):
            msg = f"the names of a Dict space must be strings, to be keys: got {name!r}."
            raise TypeError(msg)
    return list(named.items())


def check_keys(seen: Iterable[SpaceLeaf], acted: Iterable[SpaceLeaf]) -> None:
    """Raise for `Dict` spaces whose names mean something else in a step."""
    ours, theirs = {leaf.key for leaf in seen}, {leaf.key for leaf in acted}
    taken = [key for key in ours | theirs if key[0] in RESERVED]
    taken += [key for key in ours for other in theirs if key[: len(other)] == other[: len(key)]]
    if taken:
        names = sorted({str(keys.as_key(key)) for key in taken})
        msg = (
            f"the spaces have entries {names}, which mean something else in a step, or are both "
            f"seen and acted: rename them by a wrapper of the environment."
        )
        raise ValueError(msg)


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    """Read one leaf of nested dictionaries and tuples."""
    for part in path:
        value = value[part]
    return value


def assemble(space: Space, values: Iterator[Any]) -> Any:
    """Put leaf values together to a value of a space."""
    if isinstance(space, spaces.Dict):
        return {name: assemble(inner, values) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(assemble(inner, values) for inner in space.spaces)
    return next(values)
