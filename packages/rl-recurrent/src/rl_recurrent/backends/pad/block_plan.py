"""Segments cut into dense blocks of time, and the way back to their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_layout import Segments

MAX_WASTE = 0.05  # share of a block's cells that may be empty


@dataclass(frozen=True)
class Block:
    """Some steps of the first segments, longest first.

    Attributes:
        shape: steps K and columns n.
        padding: 1 where a cell is empty, bool ``[K, n, 1]``; None where none is.

    Example:
        >>> Block((2, 1), None).shape
        (2, 1)
    """

    shape: tuple[int, int]
    padding: Tensor | None


@dataclass(frozen=True)
class BlockPlan:
    """The blocks of a batch.

    Attributes:
        order: segments from the longest to the shortest, int64 ``[S]``.
        inverse: place of each segment in it, int64 ``[S]``.
        blocks: in order of time.
        rows: row in each cell of all blocks, one after another, time first, int64 ``[C]``. An
            empty cell repeats the last row of its segment.
        cells: the cell of each row, int64 ``[M]``.

    Example:
        >>> BlockPlan.of(Segments.from_lengths(torch.tensor([1, 3]))).blocks[-1].shape
        (2, 1)
    """

    order: Tensor
    inverse: Tensor
    blocks: list[Block]
    rows: Tensor
    cells: Tensor

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
            >>> plan.blocks[0].shape, plan.rows, plan.cells
            ((3, 2), tensor([2, 0, 3, 1, 4, 1]), tensor([1, 3, 0, 2, 4]))
        """
        if segments.has_gaps:
            segments = Segments.from_lengths(segments.lengths)
        found = segments.time_blocks(max_waste)
        rows = torch.cat([block.rows.flatten() for block in found])
        real = torch.cat([block.real.flatten() for block in found]).nonzero()[:, 0]
        cells = torch.empty_like(real).index_copy_(0, rows[real], real)
        blocks = [_block(block.real) for block in found]
        order = segments.order
        columns = torch.arange(len(order), device=order.device)
        inverse = torch.empty_like(order).index_copy_(0, order, columns)
        return cls(order, inverse, blocks, rows, cells)

    def gather(self, x: Tensor) -> list[Tensor]:
        """Take rows in the shapes of the blocks.

        Args:
            x: ``[M, I]``. An empty cell must not send a gradient back: it would not arrive.

        Returns:
            ``[K, n, I]`` for each block.
        """
        flat: Tensor = _Gather.apply(x, self.rows, self.cells)  # type: ignore[no-untyped-call]
        sizes = [block.shape[0] * block.shape[1] for block in self.blocks]
        parts = zip(flat.split(sizes), self.blocks, strict=True)
        return [part.view(*block.shape, x.shape[1]) for part, block in parts]

    def scatter(self, made: list[Tensor]) -> Tensor:
        """Bring what was made of the blocks back to rows, the inverse of `gather`.

        Args:
            made: ``[K, n, H]`` for each block.

        Returns:
            ``[M, H]``.
        """
        flat = torch.cat([block.flatten(0, 1) for block in made])
        out: Tensor = _Scatter.apply(flat, self.cells)  # type: ignore[no-untyped-call]
        return out


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


def _block(real: Tensor) -> Block:
    steps, columns = real.shape
    return Block((steps, columns), None if bool(real.all()) else (~real).unsqueeze(-1))


class _Gather(torch.autograd.Function):
    """Rows to cells; backward is a plain gather, where torch's own would add row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, cells: Tensor) -> Tensor:
        ctx.cells = cells
        return x.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.cells), None, None


class _Scatter(torch.autograd.Function):
    """Cells to rows; empty cells get no gradient."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, cells: Tensor) -> Tensor:
        ctx.cells, ctx.num_cells = cells, len(flat)
        return flat.index_select(0, cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        whole = grads[0].new_zeros(ctx.num_cells, grads[0].shape[1])
        return whole.index_copy_(0, ctx.cells, grads[0]), None


_plans: WeakKeyDictionary[Segments, BlockPlan] = WeakKeyDictionary()
