"""Positions of rows by the index of a caller, as if the live rows were a tensor."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from rl_replay.data.structure import Arrangement
from rl_replay.storages.ring import Ring
from rl_tensordict import CPU


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

    def __len__(self) -> int: ...


def positions_at(storage: LiveRows, index: Any) -> torch.Tensor | int:
    """The positions of an index, as if the live rows were a tensor.

    Whole numbers are positions, as samples and `extend` give them, and negative ones count from the
    last row. The two differ where live rows are not the first positions: lanes have a part each.
    """
    total = len(storage)
    if isinstance(index, np.ndarray):
        index = torch.from_numpy(index)
    if storage.arrangement.ndim > 1:
        # [rows of time, *columns]; a caller sees the growing dimension where it wrote it
        rows, grows = live_positions(storage).view(-1, *storage.columns), storage.arrangement
        if not _is_prefix(storage):
            index = _by_live_rows(storage, rows, index)
        return rows.transpose(0, grows.dim_extend)[_plain(index)]
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if hasattr(index, "__index__") and not isinstance(index, torch.Tensor):
        place = index.__index__()
        if place >= 0 and not _is_prefix(storage):
            return int(row_ids_of(storage, torch.tensor([place], device=CPU))[1])
        if not -total <= place < total:
            raise IndexError(f"row {place} of a buffer of {total}: choose from [0, {total}).")
        return int(live_positions(storage)[place]) if not _is_prefix(storage) else place % total
    if isinstance(index, slice) and _is_prefix(storage):
        forward = (index.step or 1) > 0
        return torch.arange(*index.indices(total), device=CPU) if forward else _bad(index)
    index, live = _plain(index), live_positions(storage)
    if isinstance(index, torch.Tensor) and _counts(index) and not _is_prefix(storage):
        index = torch.where(index < 0, live[index.clamp(max=-1)], index) if total else index
        return row_ids_of(storage, index)[1]
    return live[index]


def whole_numbers(rows: torch.Tensor) -> torch.Tensor:
    """What names rows, as int64; an error for floats."""
    if rows.dtype is torch.int64:
        return rows
    if rows.is_floating_point():
        raise TypeError(
            f"rows are named by whole numbers, got {rows.dtype}: give the index that extend or a "
            "sample returned."
        )
    return rows.long()


def row_ids_of(storage: LiveRows, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The row ids at some positions, and the positions; all of them must have rows."""
    found = whole_numbers(positions).cpu()
    inside = (found >= 0) & (found < storage.ring.capacity)
    row_ids = storage.ring.numbers_at(found.clamp(0, storage.ring.capacity - 1))
    if not (inside := inside & (row_ids >= 0)).all():
        lanes, each = len(storage.ring.window().first), ""
        if lanes > 1:
            each = f" Each of {lanes} writers has a part of the positions: buffer[:] has all rows."
        raise IndexError(
            f"no row is stored at index {int(found[~inside][0])}: {len(storage)} rows of "
            f"{storage.ring.capacity} are.{each}"
        )
    return row_ids, found


def follow_the_last(storage: LiveRows, places: Any) -> bool:
    """Whether some numbers are those of the next rows, in order."""
    if storage.arrangement.ndim > 1 or isinstance(places, slice | tuple):
        return False
    numbers = torch.as_tensor(list(places) if isinstance(places, range) else places, device=CPU)
    total = len(storage)
    return torch.equal(numbers, torch.arange(total, total + numbers.numel(), device=CPU))


def live_positions(storage: LiveRows) -> torch.Tensor:
    """The positions of the live rows, in rising order, int64 `[len(storage)]`."""
    # in rising order, as an index into a tensor means them
    return positions_by_age(storage.ring).sort().values


def positions_by_age(ring: Ring) -> torch.Tensor:
    """The positions of the live rows, the oldest first, int64 `[N]`."""
    window = ring.window()
    # ages -> row ids -> positions
    return ring.positions(window.numbers(torch.arange(len(window), device=CPU)))


def _by_live_rows(storage: LiveRows, rows: torch.Tensor, index: Any) -> Any:
    """An index of columns whose steps are counted among the live ones, not by position."""
    parts = list(index) if isinstance(index, tuple) else [index]
    at = storage.arrangement.dim_extend
    if len(parts) <= at or any(part is None or part is Ellipsis for part in parts[: at + 1]):
        return index
    steps = parts[at] if isinstance(parts[at], slice) else torch.as_tensor(parts[at], device=CPU)
    if isinstance(steps, slice) or not _counts(steps):
        return index
    live = rows.flatten(1)[:, 0] // rows[0].numel() if len(rows) else rows.new_empty(0)
    ranks = torch.searchsorted(live, steps.contiguous())
    good = (steps < 0) | (live[ranks.clamp(max=len(live) - 1)] == steps) if len(live) else steps < 0
    if not good.all():
        raise IndexError(
            f"no rows are stored at step {int(steps[~good].reshape(-1)[0])}: the steps of "
            f"{len(live)} are. Each writer has a part of them: buffer[:] has all rows."
        )
    parts[at] = torch.where(steps < 0, steps, ranks)
    return tuple(parts) if isinstance(index, tuple) else parts[0]


def _counts(index: torch.Tensor) -> bool:
    """Whether an index has whole numbers."""
    return index.dtype is not torch.bool and not index.is_floating_point()


def _is_prefix(storage: LiveRows) -> bool:
    """Whether the live rows are at positions 0 to len - 1."""
    window, capacity = storage.ring.window(), storage.ring.capacity
    single = len(window.first) == 1  # lanes have a part of the positions each
    return single and (window.first[0] % capacity == 0 or window.counts[0] == capacity)


def _plain(index: Any) -> Any:
    if isinstance(index, torch.Tensor):
        return index.cpu()  # positions are there, an index may be on torch's default device
    if isinstance(index, tuple):
        return tuple(part.cpu() if isinstance(part, torch.Tensor) else part for part in index)
    if isinstance(index, list | range):
        found = torch.as_tensor(list(index), device=CPU)
        return found if len(found) else found.long()  # of an empty list torch makes floats
    if isinstance(index, slice) and (index.step or 1) < 0:
        return _bad(index)
    return index


def _bad(index: slice) -> Any:
    raise IndexError(f"a slice of rows steps forward, got {index}: flip the result instead.")
