"""How a transform reads rows alongside those of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout.segments.segments import Segments
from rl_tensordict import NestedKey, as_tuple, build, nest, require


@runtime_checkable
class RowSource(Protocol):
    """Stored rows that can be read by number, with a mask of what the markers prove.

    A buffer hands one to every transform with ``needs_rows = True``. Rows are never-reused write
    numbers, as ``("collector", "row")`` holds them in a sample; one that is not stored any more
    is masked out, not an error. `BatchRows` is the source of the rows of one batch.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> isinstance(BatchRows(trajectories([2, 3])), RowSource)
        True
    """

    def read(self, rows: Tensor, keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read keys of some rows.

        Args:
            rows: int64 ``[*R]``.
            keys: the leaves to read.

        Returns:
            A tensordict ``[*R]``, and which of its rows hold what was asked for, bool ``[*R]``.
        """
        ...

    def after(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the rows k steps later in the same trajectory.

        Args:
            rows: int64 ``[*R]``.
            k: how many steps later, at least 1.

        Returns:
            Their numbers, int64 ``[*R]``, and where the markers prove them, bool ``[*R]``.
        """
        ...

    def before(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the rows k steps earlier in the same trajectory.

        Args:
            rows: int64 ``[*R]``.
            k: how many steps earlier, at least 1.

        Returns:
            Their numbers, int64 ``[*R]``, and where the markers prove them, bool ``[*R]``.
        """
        ...


class BatchRows:
    """The rows of one batch as a row source, by their index in the flattened batch.

    Args:
        batch: TED rows ``[N]`` or ``[*B, T]`` with markers. Padding has no row before or after it.

    Attributes:
        numbers: int64 ``[N]``, the index of every row.

    Raises:
        KeyError: the batch has no marker.
        ValueError: it has no row, or a marker does not fit it.
        TypeError: a marker has the wrong dtype.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> rows = BatchRows(trajectories([2, 3]))
        >>> rows.after(torch.tensor([0, 1]), 1)
        (tensor([1, 2]), tensor([ True, False]))
    """

    def __init__(self, batch: TensorDictBase) -> None:
        self._batch = batch
        self._segments = Segments.of(batch)
        device = self._segments.starts.device
        self.numbers = torch.arange(self._segments.num_rows, device=device)

    def read(self, rows: Tensor, keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read keys of some rows.

        Args:
            rows: int64 ``[*R]``.
            keys: the leaves to read.

        Returns:
            A tensordict ``[*R]``, and which rows are in the batch, bool ``[*R]``; the others hold
            some row of it.

        Raises:
            KeyError: a key is missing.
        """
        batch = self._batch
        index = rows.clamp(0, len(self.numbers) - 1)
        leaves = {
            as_tuple(key): require(batch, key).flatten(0, batch.ndim - 1)[index] for key in keys
        }
        return build(nest(leaves), rows.shape, device=batch.device), index == rows

    def after(self, rows: Tensor, k: int | Tensor) -> tuple[Tensor, Tensor]:
        """Find the rows k steps later in the same segment.

        Args:
            rows: int64 ``[*R]``.
            k: how many steps later, at least 1; or int64 ``[*R]``, for each row its own.

        Returns:
            Their index, int64 ``[*R]``, and whether it is in the segment, bool ``[*R]``.
        """
        return rows + k, _reaches(self._of(self._remaining, rows), k)

    def before(self, rows: Tensor, k: int | Tensor) -> tuple[Tensor, Tensor]:
        """Find the rows k steps earlier in the same segment.

        Args:
            rows: int64 ``[*R]``.
            k: how many steps earlier, at least 1; or int64 ``[*R]``, for each row its own.

        Returns:
            Their index, int64 ``[*R]``, and whether it is in the segment, bool ``[*R]``.
        """
        return rows - k, _reaches(self._of(self._preceding, rows), k)

    def extent(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Count the rows before and after each row in its segment.

        Args:
            rows: int64 ``[*R]``.

        Returns:
            Their numbers, int64 ``[*R]`` each; 0 for padding and for rows outside the batch.
        """
        index = rows.clamp(0, len(self.numbers) - 1)
        known = index == rows
        return self._preceding[index].mul_(known), self._remaining[index].mul_(known)

    def _of(self, counts: Tensor, rows: Tensor) -> Tensor:
        if rows is self.numbers:  # all rows in order: nothing to look up
            return counts
        index = rows.clamp(0, len(counts) - 1)
        return counts[index].mul_(index == rows)

    @property
    def _preceding(self) -> Tensor:
        return self._segments.positions.reshape(-1)

    @cached_property
    def _remaining(self) -> Tensor:
        segments = self._segments
        lasts = segments.scatter(segments.spread(segments.lasts), fill=-1).reshape(-1)
        remaining = lasts - self.numbers
        return remaining.clamp_min_(0) if segments.has_gaps else remaining  # padding: -1 - row


def _reaches(counts: Tensor, k: int | Tensor) -> Tensor:
    # a step count stored with padding may be 0, and no row is its own successor
    return counts >= k if isinstance(k, int) else (counts >= k) & (k >= 1)
