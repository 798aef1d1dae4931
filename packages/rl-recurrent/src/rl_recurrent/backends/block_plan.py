"""Segments cut into dense blocks of time: gather rows into blocks, scatter them back."""

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
    """A dense block: some steps of the longest segments."""

    shape: tuple[int, int]  # steps K and columns n
    padding: Tensor | None  # True where a cell is empty, bool [K, n, 1]; None without such cells


@dataclass(frozen=True)
class BlockPlan:
    """The blocks of a batch."""

    order: Tensor  # segments from the longest to the shortest, int64 [S]
    inverse: Tensor  # place of each segment in it, int64 [S]
    blocks: list[Block]  # in order of time
    # row in each cell of all blocks, one after another, time first, int64 [C]. An empty cell
    # repeats the last row of its segment
    rows: Tensor
    cells: Tensor  # the cell of each row, int64 [M]

    @classmethod
    def of(cls, segments: Segments, max_waste: float = MAX_WASTE) -> BlockPlan:
        """Cut segments into blocks; copies their lengths to the host once."""
        if segments.has_gaps:  # x holds real rows alone: count rows without padding
            segments = Segments.from_lengths(segments.lengths)
        time_blocks = segments.time_blocks(max_waste)
        rows = torch.cat([block.rows.flatten() for block in time_blocks])
        real = torch.cat([block.real.flatten() for block in time_blocks]).nonzero()[:, 0]
        # inverse of rows over real cells; each row has exactly one
        cells = torch.empty_like(real).index_copy_(0, rows[real], real)
        blocks = [_block(block.real) for block in time_blocks]
        order = segments.order
        columns = torch.arange(len(order), device=order.device)
        inverse = torch.empty_like(order).index_copy_(0, order, columns)
        return cls(order, inverse, blocks, rows, cells)

    def gather(self, x: Tensor) -> list[Tensor]:
        """Gather rows ``[M, I]`` into the blocks, ``[K, n, I]`` each."""
        # the backward pass drops gradients of empty cells: the caller must mask these inputs
        flat: Tensor = _Gather.apply(x, self.rows, self.cells)  # type: ignore[no-untyped-call]
        sizes = [block.shape[0] * block.shape[1] for block in self.blocks]
        parts = zip(flat.split(sizes), self.blocks, strict=True)
        return [part.view(*block.shape, x.shape[1]) for part, block in parts]

    def scatter(self, blocks: list[Tensor]) -> Tensor:
        """Scatter blocks ``[K, n, H]`` back to rows ``[M, H]``, the inverse of `gather`."""
        flat = torch.cat([block.flatten(0, 1) for block in blocks])
        out: Tensor = _Scatter.apply(flat, self.cells)  # type: ignore[no-untyped-call]
        return out


def block_plan(segments: Segments) -> BlockPlan:
    """Cut segments into blocks; cached as long as the segments live."""
    if segments not in _plans:
        _plans[segments] = BlockPlan.of(segments)
    return _plans[segments]


def _block(real: Tensor) -> Block:
    steps, columns = real.shape
    return Block((steps, columns), None if bool(real.all()) else (~real).unsqueeze(-1))


class _Gather(torch.autograd.Function):
    """Rows to cells; backward is a gather, not the slow scatter-add of `index_select`."""

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
