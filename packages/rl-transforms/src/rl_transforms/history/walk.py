"""Walks along trajectories, from many rows at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import BatchRows, RowSource, keys
from rl_transforms.entries import required

FindRows = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def numbered_rows(
    who: object, batch: TensorDictBase, source: RowSource | None
) -> tuple[RowSource, Tensor]:
    """The source of earlier and later rows, and the numbers ``[R]`` of a batch's rows in it."""
    if source is None:
        rows = BatchRows(batch)
        return rows, rows.numbers
    return source, required(who, batch, keys.ROW).reshape(-1).cpu()


def walk(source: RowSource, rows: Tensor, far: int) -> tuple[Tensor, Tensor]:
    """The rows `far` steps later, earlier if negative, and which are proved, ``[R]``."""
    if far == 0:
        return rows, torch.ones_like(rows, dtype=torch.bool)
    find = source.after if far > 0 else source.before
    return find(rows, abs(far))


def walk_to_end(rows: Tensor, find: FindRows) -> tuple[Tensor, Tensor]:
    """Walk to the last row that the markers prove; return it and its distance, ``[R]``."""
    # Strides double until no row can take one, then halve: two calls for each binary digit of the
    # longest distance.
    stride = 1
    while bool(find(rows, stride)[1].any()):
        stride *= 2
    far = torch.zeros_like(rows)
    while stride := stride // 2:
        reached, proved = find(rows, stride)
        rows = torch.where(proved, reached, rows)
        far = far + stride * proved  # greedy: each stride is a binary digit of the distance
    return rows, far


def walk_by(rows: Tensor, far: Tensor, find: FindRows) -> Tensor:
    """Walk from each row by its own distance, int64 ``[R]``, which must be proved."""
    stride = 1  # one call for each binary digit of the largest distance
    while bool((far >= stride).any()):
        is_set = (far & stride) > 0
        rows = torch.where(is_set, find(rows, stride)[0], rows)
        stride *= 2
    return rows
