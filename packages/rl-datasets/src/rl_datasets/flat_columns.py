"""Columns whose rows are episodes end to end, read some whole episodes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rl_datasets.paths import PathName, path_of
from rl_tensordict.types import Array, Flags, Ints

Key = TypeVar("Key")
BLOCK_ROWS = 16_384


def require_length(columns: Mapping[Any, Any], rows: int, of: object, place: object) -> None:
    """Raises where a column has another number of rows."""
    for key, column in columns.items():
        found = column.shape[0] if column.shape else 0
        if found != rows:
            raise ValueError(f"{place}: column {key!r} has {found} rows, {of!r} has {rows}.")


def bounds_of(ends: Flags) -> Ints:
    """Where episodes begin, and where the last one ends, int64 `[episodes + 1]`."""
    # a flag at the last row ends the last episode: no empty one follows
    found = np.flatnonzero(ends) + 1
    bounds: Ints = np.concatenate([[0], found[found < len(ends)], [len(ends)]])
    return bounds


def parts(
    columns: Mapping[Key, Any], bounds: Ints, first: int = 0
) -> Iterator[tuple[int, dict[Key, Array]]]:
    """The rows of each episode, with the row that it begins at."""
    number = first
    while number < len(bounds) - 1:
        begin = int(bounds[number])
        # as many whole episodes as fit into a block, at least one
        stop = max(number + 1, int(np.searchsorted(bounds, begin + BLOCK_ROWS, "right")) - 1)
        block = {key: column[begin : int(bounds[stop])] for key, column in columns.items()}
        for one in range(number, stop):
            low, high = int(bounds[one]) - begin, int(bounds[one + 1]) - begin
            yield begin + low, {key: rows[low:high] for key, rows in block.items()}
        number = stop


def only_file(path: PathName, pattern: str) -> Path:
    """The file itself, or the only one in a folder that fits a pattern."""
    path = path_of(path, "path")
    if path.is_file():
        return path
    found = sorted(path.rglob(pattern))
    if not found:
        raise FileNotFoundError(f"there is no {pattern} in {path}.")
    if len(found) > 1:
        names = [one.name for one in found[:4]]
        raise ValueError(f"{path} has {len(found)} files {pattern}, such as {names}: give one.")
    return found[0]
