"""The keys of a recurrent module, checked and completed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple


def read_keys(
    key: NestedKey | None, given: Sequence[NestedKey] | None, states: Sequence[str]
) -> list[NestedKey]:
    """Complete the keys that a module reads: input, states, ``"is_init"``."""
    read = _completed("in_key", key, given, [*states, keys.IS_INIT])
    if len(read) == len(states) + 1:
        read.append(keys.IS_INIT)
    if len(read) != len(states) + 2:
        msg = f"expected in_keys of an input, {len(states)} states and is_init: got {read}."
        raise ValueError(msg)
    if as_tuple(read[-1]) != (keys.IS_INIT,):
        msg = (
            f"expected {keys.IS_INIT!r} as the last of in_keys: got {read[-1]!r}. Markers of a "
            "nested group are not read: put the group into the batch."
        )
        raise ValueError(msg)
    return read


def written_keys(
    key: NestedKey | None, given: Sequence[NestedKey] | None, states: Sequence[NestedKey]
) -> list[NestedKey]:
    """Complete the keys that a module writes: output, next states."""
    written = _completed("out_key", key, given, map(keys.next_key, states))
    if len(written) != len(states) + 1:
        msg = f"expected out_keys of an output and {len(states)} states: got {written}."
        raise ValueError(msg)
    return written


def _completed(
    name: str, key: NestedKey | None, given: Sequence[NestedKey] | None, rest: Iterable[NestedKey]
) -> list[NestedKey]:
    """The keys that were given, or one with the default names of the rest, flat where nested."""
    if (given is None) == (key is None):
        msg = f"expected {name} or {name}s, one of the two: got {key!r} and {given!r}."
        raise ValueError(msg)
    found = [key, *rest] if given is None else given
    return [each if isinstance(each, str) else as_tuple(each) for each in found]
