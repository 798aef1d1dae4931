"""Positions of rows by the index of a caller, as if the live rows were a tensor."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from rl_replay.data.structure import Arrangement
from rl_replay.storages.ring import Ring


class LiveRows(Protocol):
    """What positions depend on: the ring of a storage and its dimensions."""

    arrangement: Arrangement

    @property
    def ring(self) -> Ring:
        """Which rows can be read."""
        ...

    @property
    def columns(self) -> torch.Size:
        """The dimensions after the first."""
        ...

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        ...

    @property
    def max_size(self) -> int:
        """The capacity."""
        ...

    def __len__(self) -> int: ...


def positions_at(storage: LiveRows, index: Any) -> torch.Tensor | int:
    """The positions of an index, as if the live rows were a tensor."""
    total = len(storage)
    if isinstance(index, np.ndarray):
        index = torch.from_numpy(index)
    if storage.ndim > 1:
        # [rows of time, *columns]; a caller sees the growing dimension where it wrote it
        rows = live_positions(storage).view(-1, *storage.columns)
        return rows.transpose(0, storage.arrangement.dim_extend)[_plain(index)]
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if hasattr(index, "__index__") and not isinstance(index, torch.Tensor):
        place = index.__index__()
        if not -total <= place < total:
            raise IndexError(f"row {place} of a buffer of {total}: choose from [0, {total}).")
        return int(live_positions(storage)[place]) if not _is_prefix(storage) else place % total
    if isinstance(index, slice) and _is_prefix(storage):
        return torch.arange(*index.indices(total)) if (index.step or 1) > 0 else _bad(index)
    return live_positions(storage)[_plain(index)]


def follow_the_last(storage: LiveRows, places: Any) -> bool:
    """Whether some numbers are those of the next rows, in order."""
    if storage.ndim > 1 or isinstance(places, slice | tuple):
        return False
    numbers = torch.as_tensor(list(places) if isinstance(places, range) else places)
    total = len(storage)
    return torch.equal(numbers, torch.arange(total, total + numbers.numel()))


def live_positions(storage: LiveRows) -> torch.Tensor:
    """The positions of the live rows, in rising order, int64 `[len(storage)]`."""
    window = storage.ring.window()
    total = len(window)
    # ages -> row ids -> positions; in rising order, as an index into a tensor means them
    positions = storage.ring.positions(window.numbers(torch.arange(total)))
    return positions.sort().values


def _is_prefix(storage: LiveRows) -> bool:
    """Whether the live rows are at positions 0 to len - 1."""
    window, capacity = storage.ring.window(), storage.max_size
    single = len(window.first) == 1  # lanes have a part of the positions each
    return single and (window.first[0] % capacity == 0 or window.counts[0] == capacity)


def _plain(index: Any) -> Any:
    if isinstance(index, list | range):
        return torch.as_tensor(list(index))
    if isinstance(index, slice) and (index.step or 1) < 0:
        return _bad(index)
    return index


def _bad(index: slice) -> Any:
    raise IndexError(f"a slice of rows steps forward, got {index}: flip the result instead.")
