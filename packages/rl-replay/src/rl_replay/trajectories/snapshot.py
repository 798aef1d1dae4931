"""What a trajectory index holds as plain arrays, for a checkpoint.

An index could be made anew from the rows, but its trajectories would be in other slots, and the
next draws with the same generator would be others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories.tables import (
    FREE_PIECES,
    FREE_TRAJECTORIES,
    FRESH_PIECE,
    FRESH_TRAJECTORY,
    INDEXED,
    LIVE,
    LOW,
    TrajectoryTables,
)

_USED = {
    "pieces": FRESH_PIECE,
    "trajectories": FRESH_TRAJECTORY,
    "live": LIVE,
    "free_pieces": FREE_PIECES,
    "free_trajectories": FREE_TRAJECTORIES,
}


def state_of(tables: TrajectoryTables) -> dict[str, NDArray[np.generic]]:
    """A copy of the used parts of the tables."""
    words = tables.words.copy()
    parts = {
        name: [getattr(tables, name)[part] for part in _parts(words, len(tables.live), column)]
        for name, column in _USED.items()
    }
    rows = [tables.piece_of[positions] for positions in _rows(words, len(tables.live))]
    found = {"piece_of": rows, **parts}
    return {"words": words} | {name: np.concatenate(arrays) for name, arrays in found.items()}


def restore(tables: TrajectoryTables, state: Mapping[str, NDArray[np.generic]]) -> None:
    """Fills tables from a snapshot; the counters last."""
    words = np.asarray(state["words"], dtype=np.int64)
    room = len(tables.live)
    if words.shape != tables.words.shape:
        raise ValueError(
            f"the state is of an index with counters {words.shape}, this one has "
            f"{tables.words.shape}: restore it into as many lanes."
        )
    # [lanes, counters]: none may exceed the rows of a lane
    counts = np.append(words[:, LIVE:], (words[:, INDEXED] - words[:, LOW])[:, None], axis=1)
    if (words < 0).any() or (counts < 0).any() or (counts > room // len(words)).any():
        raise ValueError(f"the counters {words.tolist()} do not fit {room} rows.")
    places: dict[str, list[slice] | list[NDArray[np.int64]]] = {
        name: list(_parts(words, room, column)) for name, column in _USED.items()
    }
    # rows wrap round their lane, so their positions are no slice
    places["piece_of"] = list(_rows(words, room))
    for name, parts in places.items():
        table, values = getattr(tables, name), state[name]
        sizes = [len(table[part]) for part in parts]
        if values.shape != (sum(sizes), *table.shape[1:]):
            raise ValueError(
                f"{name}: expected shape {(sum(sizes), *table.shape[1:])}, got {values.shape}."
            )
        for part, rows in zip(parts, np.split(values, np.cumsum(sizes)[:-1]), strict=True):
            table[part] = rows
    # last: until then the counters say that nothing is there
    tables.words[:] = words


def _parts(words: NDArray[np.int64], room: int, column: int) -> Iterator[slice]:
    capacity = room // len(words)
    for lane, count in enumerate(words[:, column].tolist()):
        yield slice(lane * capacity, lane * capacity + count)


def _rows(words: NDArray[np.int64], room: int) -> Iterator[NDArray[np.int64]]:
    capacity = room // len(words)
    for lane, row in enumerate(words.tolist()):
        yield np.arange(row[LOW], row[INDEXED]) % capacity + lane * capacity
