"""Moves of one leaf between the shape of its batch and the shape of its segments."""

from __future__ import annotations

import torch
from torch import Tensor


def flatten(values: Tensor, batch_shape: torch.Size) -> Tensor:
    """Merge the batch dimensions of a leaf.

    Args:
        values: ``[*B, T, ...]``.
        batch_shape: ``[*B, T]``.

    Returns:
        ``[N, ...]``, a view where the memory allows it.

    Raises:
        ValueError: the leaf does not start with the shape of the batch.

    Example:
        >>> flatten(torch.zeros(2, 3, 5), torch.Size([2, 3])).shape
        torch.Size([6, 5])
    """
    if values.shape[: len(batch_shape)] != batch_shape:
        msg = f"expected a leaf of shape {[*batch_shape, '...']}: got {list(values.shape)}."
        raise ValueError(msg)
    return values.flatten(0, len(batch_shape) - 1) if len(batch_shape) > 1 else values


def pad(rows: Tensor, cells: Tensor, shape: tuple[int, int], fill: float = 0) -> Tensor:
    """Put rows into their cells of a dense array.

    Args:
        rows: ``[M, ...]``.
        cells: where each row goes, int64 ``[M]``, in ``shape`` flattened.
        shape: rows and columns of the result.
        fill: what the other cells hold.

    Returns:
        ``[*shape, ...]``.

    Example:
        >>> pad(torch.tensor([5, 6]), torch.tensor([0, 3]), (2, 2))
        tensor([[5, 0],
                [0, 6]])
    """
    out = rows.new_full((shape[0] * shape[1], *rows.shape[1:]), fill)
    return out.index_copy_(0, cells, rows).view(*shape, *rows.shape[1:])
