"""Segments cut into dense blocks of time, and the way back to their rows."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rl_layout import Segments

MAX_WASTE = 0.05  # share of a block's cells that may be empty


@dataclass(frozen=True)
class Block:
    """Some steps of the first segments, longest first.

    Attributes:
        rows: row in each cell, int64 ``[K * n]``, time first, counted over real rows.
        shape: steps K and columns n.
        padding: 1 where a cell is empty, ``[K, n, 1]``; None where none is.
        cells: the cells that hold a row, int64; None where all do.

    Example:
        >>> Block(torch.tensor([0, 1]), (2, 1), None, None).shape
        (2, 1)
    """

    rows: Tensor
    shape: tuple[int, int]
    padding: Tensor | None
    cells: Tensor | None

    def gather(self, x: Tensor) -> Tensor:
        """Take rows ``[M, I]`` in the shape of the block, ``[K, n, I]``."""
        return x.index_select(0, self.rows).view(*self.shape, x.shape[1])

    def real(self, made: Tensor) -> Tensor:
        """Take the cells ``[K, n, H]`` that hold a row, ``[R, H]``."""
        flat = made.flatten(0, 1)
        return flat if self.cells is None else flat.index_select(0, self.cells)


@dataclass(frozen=True)
class BlockPlan:
    """The blocks of a batch.

    Attributes:
        order: segments from the longest to the shortest, int64 ``[S]``.
        inverse: place of each segment in it, int64 ``[S]``.
        blocks: in order of time.
        places: where each real row lies among the real cells of all blocks, int64 ``[M]``.

    Example:
        >>> BlockPlan.of(Segments.from_lengths(torch.tensor([1, 3]))).blocks[-1].shape
        (2, 1)
    """

    order: Tensor
    inverse: Tensor
    blocks: list[Block]
    places: Tensor

    @classmethod
    def of(cls, segments: Segments, max_waste: float = MAX_WASTE) -> BlockPlan:
        """Cut segments into blocks.

        Args:
            segments: of a batch. Their lengths are copied to the host once.
            max_waste: share of a block's cells that may be empty.

        Returns:
            The plan.

        Example:
            >>> plan = BlockPlan.of(Segments.from_lengths(torch.tensor([2, 3])), max_waste=0.2)
            >>> plan.blocks[0].shape, plan.places
            ((3, 2), tensor([1, 3, 0, 2, 4]))
        """
        if segments.has_gaps:
            segments = Segments.from_lengths(segments.lengths)
        blocks, found = [], []
        for block in segments.time_blocks(max_waste):
            steps, columns = block.rows.shape
            rows, full = block.rows.flatten(), bool(block.real.all())
            cells = None if full else block.real.flatten().nonzero()[:, 0]
            padding = None if full else (~block.real).unsqueeze(-1)
            blocks.append(Block(rows, (steps, columns), padding, cells))
            found.append(rows if cells is None else rows[cells])
        order = segments.order
        return cls(order, _inverse(order), blocks, _inverse(torch.cat(found)))


def block_plan(segments: Segments) -> BlockPlan:
    """Cut segments into blocks; the result is kept as long as they live.

    Args:
        segments: of a batch.

    Returns:
        The plan.

    Example:
        >>> segments = Segments.from_lengths(torch.tensor([1, 3]))
        >>> block_plan(segments) is block_plan(segments)
        True
    """
    if segments not in _plans:
        _plans[segments] = BlockPlan.of(segments)
    return _plans[segments]


def _inverse(order: Tensor) -> Tensor:
    places = torch.arange(len(order), device=order.device)
    return torch.empty_like(order).index_copy_(0, order, places)


_plans: WeakKeyDictionary[Segments, BlockPlan] = WeakKeyDictionary()
