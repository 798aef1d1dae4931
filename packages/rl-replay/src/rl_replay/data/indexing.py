"""From what a caller writes in brackets to positions of rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_replay.storages.storage import Storage


def live_positions(storage: Storage) -> torch.Tensor:
    """Where the rows that can be read lie, in rising order, int64 `[len(storage)]`."""
    window = storage.ring.window()
    total = len(window)
    positions = storage.ring.positions(window.numbers(torch.arange(total)))
    return positions.sort().values


def require_numbers(numbers: torch.Tensor, cells: TensorDictBase) -> None:
    """Nothing where some rows can be written to the rows of so many numbers."""
    if not isinstance(cells, TensorDictBase):
        raise TypeError(f"rows are a tensordict, got {type(cells).__name__}: wrap the leaves.")
    if getattr(numbers, "dtype", None) != torch.int64:
        kind = getattr(numbers, "dtype", type(numbers).__name__)
        raise TypeError(f"numbers of rows are an int64 tensor, got {kind}: use sample[keys.ROW].")
    if numbers.ndim != 1 or cells.batch_size[:1] != numbers.shape:
        raise ValueError(
            f"expected as many rows as numbers, got {list(cells.batch_size)} rows for numbers of "
            f"shape {list(numbers.shape)}."
        )


def positions_at(storage: Storage, index: Any) -> torch.Tensor | int:
    """The positions that an index means, as if the rows that can be read were a tensor."""
    total = len(storage)
    if isinstance(index, np.ndarray):
        index = torch.from_numpy(index)
    if storage.ndim > 1:
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


def coordinates(storage: Storage, positions: torch.Tensor) -> torch.Tensor:
    """The index of some positions, such that `buffer[index]` gives their rows."""
    if storage.ndim == 1:
        return positions
    found = torch.unravel_index(positions, storage.shape)
    return torch.stack(storage.arrangement.swapped(found), -1)


def _is_prefix(storage: Storage) -> bool:
    """Whether rows lie at positions 0 to len - 1."""
    window, capacity = storage.ring.window(), storage.max_size
    single = len(window.first) == 1
    return single and (window.first[0] % capacity == 0 or window.counts[0] == capacity)


def _plain(index: Any) -> Any:
    if isinstance(index, list | range):
        return torch.as_tensor(list(index))
    if isinstance(index, slice) and (index.step or 1) < 0:
        return _bad(index)
    return index


def _bad(index: slice) -> Any:
    raise IndexError(f"a slice of rows steps forward, got {index}: flip the result instead.")
