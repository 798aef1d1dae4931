"""Which columns of a storage say where its trajectories begin and end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Self

import torch

from rl_layout import keys
from rl_slabs import RowSchema
from rl_tensordict import NestedKey, as_key, as_tuple

TRAJECTORY_KEYS: tuple[NestedKey, ...] = (keys.TRAJ_IDS, "episode")
"""Where ids are looked for, in this order."""

END_KEYS: tuple[NestedKey, ...] = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)
_END_NAMES = frozenset(
    f"{name}{plural}"
    for name in ("done", "terminated", "truncated", "terminal", "termination", "truncation")
    for plural in ("", "s")
)
DONE_LIKE = frozenset({*keys.DONE_KEYS, keys.REWARD})


@dataclass(frozen=True)
class MarkerKeys:
    """The marker columns of a storage; an absent marker cuts nothing."""

    # Columns that must be equal in two rows for one to continue the other
    ids: tuple[NestedKey, ...] = ()
    step: NestedKey | None = None  # The position in the trajectory
    init: NestedKey | None = None  # The flag of first steps
    ends: tuple[NestedKey, ...] = ()  # Flags of last steps; any one of them ends a trajectory
    far: NestedKey | None = None  # How far away the next observation of n-step rows is
    mask: NestedKey | None = None  # Which rows are real
    # Pairs of a root key and its next key: where ids or steps are missing, equal bits of all of
    # them prove that one row continues another
    observations: tuple[tuple[NestedKey, NestedKey], ...] = ()

    @classmethod
    def of(cls, schema: RowSchema) -> Self:
        """The contract's markers that a schema holds."""

        def here(key: NestedKey) -> NestedKey | None:
            return key if key in schema else None

        return cls(
            ids=next(((key,) for key in TRAJECTORY_KEYS if key in schema), ()),
            step=here(keys.TRAJ_STEP),
            init=here(keys.IS_INIT),
            ends=tuple(key for key in END_KEYS if key in schema),
            far=here(keys.STEPS_TO_NEXT_OBS),
            mask=here(keys.MASK),
            observations=tuple(_pairs(schema)),
        )

    @cached_property
    def columns(self) -> tuple[NestedKey, ...]:
        """The keys of all marker columns, without observations."""
        single = (self.step, self.init, self.far, self.mask)
        return (*self.ids, *self.ends, *(key for key in single if key is not None))

    @cached_property
    def paths(self) -> tuple[tuple[NestedKey, tuple[str, ...]], ...]:
        """The keys of all marker columns, with their paths."""
        return tuple((key, as_tuple(key)) for key in self.columns)

    @cached_property
    def observed(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """The paths of the observations and of the next observations, in pairs."""
        return tuple((as_tuple(key), as_tuple(after)) for key, after in self.observations)

    @cached_property
    def cuts(self) -> bool:
        """Whether any column marks where trajectories begin or end."""
        return bool(self.ids or self.ends or self.step is not None or self.init is not None)

    @cached_property
    def numbered(self) -> bool:
        """Whether rows have ids and steps, which determine their predecessor."""
        return bool(self.ids) and self.step is not None

    @cached_property
    def compares(self) -> bool:
        """Whether observations of neighbours inside one call are compared."""
        return bool(self.observations) and not self.numbered

    def with_explicit(self, ids: Iterable[NestedKey], ends: Iterable[NestedKey]) -> Self:
        """These markers with further ids and ends that a user names."""
        return replace(
            self,
            ids=tuple(dict.fromkeys((*self.ids, *map(_short, ids)))),
            ends=tuple(dict.fromkeys((*self.ends, *map(_short, ends)))),
        )


def end_candidates(schema: RowSchema) -> list[NestedKey]:
    """Flag leaves that may mark the ends of trajectories, by shape or key."""
    return [
        field.key
        for field in schema.fields
        if prod(field.shape) == 1
        and field.path[-1] != "action"
        and (field.dtype is torch.bool or field.path[-1].lower() in _END_NAMES)
    ]


def _short(key: NestedKey) -> NestedKey:
    return as_key(as_tuple(key))


def _pairs(schema: RowSchema) -> Iterable[tuple[NestedKey, NestedKey]]:
    for field in schema.fields:
        after = (keys.NEXT, *field.path)
        if field.path[0] == keys.NEXT or field.path[-1] in DONE_LIKE or after not in schema:
            continue
        following = schema[after]
        if (following.dtype, following.shape) == (field.dtype, field.shape):
            yield field.key, after
