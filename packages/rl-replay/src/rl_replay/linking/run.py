"""One row, or a few of one trajectory, one after another: recognised without arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from rl_replay.linking.markers import MarkerKeys, any_set
from rl_slabs.internals import ValidatedLeaves
from rl_tensordict import NestedKey

ReadColumn = Callable[[NestedKey], NDArray[Any]]


class RowRun(NamedTuple):
    """Rows of which each continues the one before."""

    ids: tuple[int, ...]
    step: int | None  # Of the first row; None if rows have none
    begins: bool  # Whether the first row is a first step
    ends: bool  # Whether the last row ends a trajectory
    is_near: bool = True  # Whether the next observation of the last row is one step away

    @classmethod
    def of_row(cls, get: ReadColumn, keys: MarkerKeys) -> RowRun:
        """What a row is, whose leaves `get` returns by key."""
        step = None if keys.step is None else int(get(keys.step).item(0))
        ids = tuple([int(get(key).item(0)) for key in keys.ids])
        begins = keys.init is not None and any_set(get(keys.init))
        ends = False
        for key in keys.ends:
            ends = ends or any_set(get(key))
        is_near = keys.far is None or int(get(keys.far).item(0)) == 1
        return cls(ids, step, begins, ends and is_near, is_near)

    @classmethod
    def of(cls, leaves: ValidatedLeaves, keys: MarkerKeys, count: int) -> RowRun | None:
        """What rows with ids and steps are, if they are one run and no row says more."""
        if not keys.numbered or keys.step is None or keys.mask is not None or keys.far is not None:
            return None
        (steps, *names), begun, ends = (
            _values(leaves, some)
            for some in (
                (keys.step, *keys.ids),
                () if keys.init is None else (keys.init,),
                keys.ends,
            )
        )
        if steps != [*range(steps[0], steps[0] + count)]:
            return None
        for name in names:
            if len(name) != count or name.count(name[0]) != count:
                return None
        # no first step after the first row, and no end before the last one
        for flags in begun:
            if len(flags) != count or any(flags[1:]):
                return None
        for flags in ends:
            if len(flags) != count or any(flags[:-1]):
                return None
        first, last = (
            any(flags[place] for flags in some) for some, place in ((begun, 0), (ends, -1))
        )
        return cls(tuple([name[0] for name in names]), steps[0], first, last)


def _values(leaves: ValidatedLeaves, keys: Sequence[NestedKey]) -> list[list[Any]]:
    return [leaves[key].ravel().tolist() for key in keys]
