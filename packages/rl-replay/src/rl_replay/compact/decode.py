"""Rows from their compact form, piece by piece: each value goes to its place as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_replay.compact.order import ExtraRows
from rl_slabs import Rows, RowSchema
from rl_tensordict import build, nest
from rl_tensordict.types import Ints, KeyPath


class CompactSource(Protocol):
    """What a compact form gives back."""

    lengths: Ints  # Rows of each trajectory, int64 [S]
    order: Ints | None  # The place of each row by age, [N]; None if it is the same
    shared: list[KeyPath]  # Leaves at the root that are kept once
    steps: list[KeyPath]  # The other ones

    def layout(self, group: str, path: KeyPath) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and the shape of a leaf in a group."""
        ...

    def pieces(self, group: str, path: KeyPath) -> Iterator[torch.Tensor]:
        """The rows of a leaf of "shared", "steps" or "exceptions", one after another."""
        ...

    def exceptions(self, path: KeyPath) -> Ints:
        """The rows whose next value of a shared leaf is not that of the row after them."""
        ...


def require_numbers(where: str, array: Any, dtype: str, most: int) -> None:
    """Raises unless an array, or a dataset that was not read yet, holds so many numbers at most."""
    shape = getattr(array, "shape", None)
    fits = shape is not None and len(shape) == 1 and shape[0] <= most
    if not fits or str(array.dtype) != dtype:
        found = repr(array) if shape is None else f"{array.dtype} {list(shape)}"
        raise ValueError(
            f"{where} should be up to {most} numbers, {dtype}, and is {found}. Restore the dump "
            "from a copy."
        )


def paths_of(where: str, listed: Any) -> list[KeyPath]:
    """The leaves that a dump lists, checked."""
    good = isinstance(listed, list) and all(
        isinstance(path, list) and path and all(isinstance(part, str) for part in path)
        for path in listed
    )
    if not good:
        raise ValueError(f"{where} names no leaves: {listed!r:.200}. Restore it from a copy.")
    return [tuple(path) for path in listed]


def put_rows(source: CompactSource, rows: Rows, positions: Ints) -> None:
    """Writes rows, by age, to their positions, int64 `[N]`; -1 leaves a row out."""
    # by age -> by trajectory, as all leaves are kept, int64 [N]
    places = positions if source.order is None else positions[source.order]
    extras = ExtraRows.of_lengths(source.lengths)
    begins = np.concatenate(([0], extras.ends[:-1] + 1))  # of trajectories in shared leaves [S]
    for path in source.steps:
        start = 0
        for piece in source.pieces("steps", path):
            _put(rows, path, places[start : start + len(piece)], piece)
            start += len(piece)
    for path in source.shared:
        after, start = keys.next_key(path), 0
        for piece in source.pieces("shared", path):
            where = np.arange(start, start + len(piece))  # of N + S
            before = extras.before(where)  # so many trajectories have ended, each with one row more
            row, is_extra = where - before, extras.is_extra(where, before)
            # an entry is the root's of its row, and the next value of the row before: at the first
            # row of a trajectory not of one before, at the extra row only of one before
            is_first = begins[np.minimum(before, len(begins) - 1)] == where
            _put(rows, path, places[row[~is_extra]], piece[torch.from_numpy(~is_extra)])
            _put(rows, after, places[row[~is_first] - 1], piece[torch.from_numpy(~is_first)])
            start += len(piece)
        wrong, start = source.exceptions(path), 0  # written last, over what is not so
        for piece in source.pieces("exceptions", path) if len(wrong) else ():
            _put(rows, after, places[wrong[start : start + len(piece)]], piece)
            start += len(piece)


def read_all(source: CompactSource, schema: RowSchema) -> TensorDict:
    """All rows by age, in memory of their own."""
    count = int(source.lengths.sum())
    rows = Rows.zeros(schema, count)
    put_rows(source, rows, np.arange(count))
    return rows.view()


def _put(rows: Rows, path: KeyPath, places: Ints, values: torch.Tensor) -> None:
    if not len(places):
        return
    if places.min() < 0:  # rows that a smaller number of lanes leaves out
        kept = places >= 0
        places, values = places[kept], values[torch.from_numpy(kept)]
        if not len(places):
            return
    where = torch.from_numpy(np.ascontiguousarray(places))
    device = next(iter(rows.arrays.values())).device if rows.packed is None else rows.packed.device
    cells = build(nest({path: values.to(device)}), values.shape[:1])
    key = path[0] if len(path) == 1 else path
    rows.write(where.to(device), cells, keys=[key])
