"""Which leaves of a row are stored once, and which column addresses its next observation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from rl_layout.keys import DONE_KEYS, NEXT, NEXT_MISSING, REWARD, STEPS_TO_NEXT_OBS
from rl_slabs import Field, RowSchema
from rl_tensordict.types import KeyPath, NestedKey

SUCCESSOR: KeyPath = ("_successor",)
"""The extra leaf of a stored row, int32, in the row or apart: the place of its next observation.

At 0 nowhere; up to the count of rows in the row at `value - 1`; above it in overflow slot
`value - 1 - rows`. Where rows and slots are in one memory, it is the address there of either.
"""


class ObservationPair(NamedTuple):
    """An observation and its leaf under `"next"`."""

    root: KeyPath  # The path of the observation
    next: KeyPath  # The path of the next observation
    name: str  # Its name in the overflow table, where a nested leaf is one like any other


class LosslessLayout:
    """The leaves that users read, and the leaves of a stored row and of an overflow slot."""

    def __init__(self, schema: RowSchema, keys: Iterable[NestedKey] | None = None) -> None:
        self.given = schema
        if SUCCESSOR in schema:
            raise KeyError(f"leaf {SUCCESSOR[0]!r} is this storage's own: rename yours.")
        roots = _found(schema) if keys is None else _chosen(schema, keys)
        if not roots:
            raise ValueError(
                "nothing to store once: no leaf is both at the root and under 'next' with "
                f"equal dtype and shape among {list(schema)}. Name the observations of rows "
                "without next ones, or use a storage that is not lossless."
            )
        self.pairs = tuple(
            ObservationPair(root, (NEXT, *root), f"{number}.{'.'.join(root)}")
            for number, root in enumerate(roots)
        )
        leaves: dict[NestedKey, tuple[torch.dtype, Iterable[int]]] = {
            field.path: (field.dtype, field.shape) for field in schema.fields
        }
        self.has_steps = STEPS_TO_NEXT_OBS in schema
        self.has_mark = NEXT_MISSING in schema
        self.may_miss = any(pair.next not in schema for pair in self.pairs)
        nexts: dict[NestedKey, tuple[torch.dtype, Iterable[int]]] = {
            pair.next: leaves[pair.root] for pair in self.pairs
        }
        marks: dict[NestedKey, tuple[torch.dtype, Iterable[int]]] = (
            {NEXT_MISSING: (torch.bool, ())} if self.may_miss else {}
        )
        stored = {path: leaf for path, leaf in leaves.items() if path not in nexts}
        bare, named = RowSchema(stored), RowSchema({**stored, SUCCESSOR: (torch.int32, ())})
        self.apart = not bare.large and named.row_bytes - bare.row_bytes > torch.int32.itemsize
        self.stored = bare if self.apart else named
        self.side = RowSchema({pair.name: leaves[pair.root] for pair in self.pairs})
        self.schema = RowSchema({**leaves, **nexts, **marks})

    @property
    def joins(self) -> bool:
        """Whether rows and slots share one address space; a slot is then as long as a row."""
        return not self.stored.large

    def slot_keys(self, *, joined: bool) -> list[NestedKey]:
        """The key of each observation in an overflow slot, which is like a row in their memory."""
        return [self.stored[pair.root].key if joined else pair.name for pair in self.pairs]

    def require_addresses(self, rows: int) -> None:
        """Raises if `SUCCESSOR` cannot address so many rows and as many slots."""
        # one int32 addresses rows and slots, next to each other in one space
        most = torch.iinfo(torch.int32).max // 2
        if rows > most:
            raise ValueError(
                f"a lossless storage holds at most {most} rows, got {rows}: make several buffers, "
                "or a storage that is not lossless."
            )

    def coming(self, present: Iterable[KeyPath]) -> tuple[tuple[Field, ...], bool]:
        """The leaves that a batch must have, and whether next observations are among them."""
        given = set(present)
        missing = [pair.next for pair in self.pairs if pair.next not in given]
        if missing and len(missing) < len(self.pairs):
            raise KeyError(
                f"next observations {missing} are missing while others are there: give all of "
                f"{[pair.next for pair in self.pairs]}, or none."
            )
        fields = [field for field in self.schema.fields if field.path not in missing]
        if not self.has_mark:
            # a sample that is stored again says which of its next observations are none
            fields = [field for field in fields if field.path != NEXT_MISSING]
            if NEXT_MISSING in given and not missing:
                fields.append(Field(NEXT_MISSING, torch.bool, (), None))
        return tuple(fields), not missing


def _found(schema: RowSchema) -> list[KeyPath]:
    excluded = {*DONE_KEYS, REWARD}
    roots = [f.path for f in schema.fields if f.path[0] != NEXT and f.path[-1] not in excluded]
    return [path for path in roots if (NEXT, *path) in schema and _same(schema, path)]


def _chosen(schema: RowSchema, keys: Iterable[NestedKey]) -> list[KeyPath]:
    roots = [field.path for field in schema.select(keys)]
    for root in roots:
        if (NEXT, *root) in schema and not _same(schema, root):
            raise ValueError(
                f"leaf {root} is {schema[root]} at the root and {schema[(NEXT, *root)]} under "
                "'next': only equal leaves can be stored once. Cast one, or leave the key out."
            )
    return roots


def _same(schema: RowSchema, root: KeyPath) -> bool:
    one, two = schema[root], schema[(NEXT, *root)]
    return (one.dtype, one.shape) == (two.dtype, two.shape)
