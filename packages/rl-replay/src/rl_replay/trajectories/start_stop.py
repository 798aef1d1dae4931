"""Where trajectories begin and end in a ring of rows, by their ids or flags alone."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_tensordict import UnfitValue


def find_start_stop_traj(
    *,
    trajectory: Tensor | None = None,
    end: Tensor | None = None,
    at_capacity: bool,
    cursor: int | range | Tensor | None = None,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the first and the last row of each trajectory in the order of a storage.

    Samplers do not use it: they know boundaries as rows come and go, and see those of every marker.
    See `rl_layout.Segments` for a batch, and `Storage.trajectories` for what is stored.

    Args:
        trajectory: ids `[T, *B]`, time first; or else
        end: bool `[T, *B]`, last rows of trajectories.
        at_capacity: the rows are a full ring: the first continues the last, unless something cuts.
        cursor: the row written last, or all rows of the last write, where a full ring is cut.
        device: where to compute.

    Returns:
        Indices of the first and of the last rows `[N, 1 + B]`, and the lengths `[N]`, all int64;
        columns of the batch one after the other. First comes after last in one that wraps round.

    Raises:
        TypeError: neither ids nor flags, or both.
        ValueError: there are no rows, or the cursor names none; it is a `RuntimeError` too.

    Example:
        >>> first, last, lengths = find_start_stop_traj(
        ...     trajectory=torch.tensor([4, 4, 5, 5, 5]), at_capacity=False
        ... )
        >>> first.tolist(), last.tolist(), lengths.tolist()
        ([[0], [2]], [[1], [4]], [2, 3])
    """
    if (trajectory is None) == (end is None):
        raise TypeError("give trajectory or end, one of them: ids of trajectories or last rows.")
    given = trajectory if end is None else end
    assert given is not None  # one of the two is given
    if not given.ndim or not len(given):
        raise UnfitValue(f"expected rows [T, *B], one at least: got {list(given.shape)}.")
    over = given.to(device or given.device).reshape(len(given), -1).T  # [columns, T]
    if end is None:
        over = over != over.roll(-1, 1)
    over = over.to(torch.bool, copy=True)
    if not at_capacity:
        over[:, -1] = True
    elif cursor is not None:
        over[:, _last_written(cursor)] = True
    over[~over.any(1), -1] = True
    column, last = over.nonzero(as_tuple=True)
    before = last.roll(1)  # the end before each; that of a column's first is its last one
    counts = over.sum(1)
    firsts = counts.cumsum(0) - counts
    before[firsts] = last[counts.cumsum(0) - 1]
    rows = over.shape[1]
    lengths = (last - before - 1) % rows + 1
    start = (before + 1) % rows
    batch = torch.unravel_index(column, given.shape[1:]) if given.ndim > 1 else ()
    first, final = (torch.stack([row, *batch], -1).to(given.device) for row in (start, last))
    return first, final, lengths.to(given.device)


def _last_written(cursor: int | range | Tensor) -> int:
    if isinstance(cursor, int):
        return cursor
    if not len(cursor):
        raise UnfitValue("cursor: expected the row written last, got none. Leave it out.")
    return int(cursor[-1])
