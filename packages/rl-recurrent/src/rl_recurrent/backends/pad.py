"""The dense cells of torch over blocks of time in which few cells are empty.

Segments of one length are one block, and torch's network runs on it unchanged: oneDNN's LSTM on a
CPU, cuDNN's persistent kernels on CUDA. Otherwise the states are carried from block to block. An
LSTM gets one more input, set in empty cells, which opens the forget gate and shuts the input gate:
c leaves a block as it was at the end of its segment.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from rl_layout import Segments
from rl_recurrent.backends import pack
from rl_recurrent.backends.dispatch import Settings, is_dense
from rl_recurrent.cells.cell import Cell, RowWeights, States

MAX_WASTE = 0.05  # share of a block's cells that may be empty
SHUT = 1e4  # sigmoid of -SHUT and SHUT is exactly 0 and 1 in every dtype


def layer(
    cell: Cell,
    x: Tensor,
    weights: RowWeights,
    states: States,
    segments: Segments,
    settings: Settings,
) -> States:
    """Run one layer in one direction: h of every row ``[M, H]``, c at segment ends ``[S, H]``."""
    # torch returns c after the last step only
    if not len(segments):
        return pack.layer(cell, x, weights, states, segments, settings)  # torch refuses no rows
    params = _torch_params(weights)
    if is_dense(segments):
        x = x.view(len(segments), segments.max_length, -1)
        # [1, S, H]: one layer; cuDNN refuses the states of one of several, which have gaps
        before = tuple([state.contiguous().unsqueeze(0) for state in states])
        out, *after = _run(cell, x, before, params, batch_first=True)
        return (out.flatten(0, 1), *(state[0] for state in after[1:]))
    plan = block_plan(segments)
    after = [state.index_select(0, plan.order).unsqueeze(0) for state in states]
    held_params = params
    if cell.hold is not None and any(block.padding is not None for block in plan.blocks):
        held_params = [_with_hold_input(weights.w_ih, cell.hold), *params[1:]]
    hidden: list[Tensor] = []
    ended: list[Tensor] = []  # c of segments that end in each block
    for block, inputs in zip(plan.blocks, plan.gather(x), strict=True):
        columns = block.shape[1]
        # columns are sorted by length: those after the block's have no later step
        ended.append(after[-1][0, columns:])
        before = tuple(state[:, :columns].contiguous() for state in after)
        held = params
        if cell.hold is not None and block.padding is not None:
            held = held_params
            # a huge repeated row would outweigh SHUT and move the gates
            inputs = inputs.masked_fill(block.padding, 0)
            inputs = torch.cat([inputs, block.padding.to(x.dtype)], -1)
        out, *after = _run(cell, inputs, before, held)
        hidden.append(out)
    if cell.num_states == 1:
        return (plan.scatter(hidden),)
    cells = torch.cat([after[-1][0], *reversed(ended)])
    return plan.scatter(hidden), cells.index_select(0, plan.inverse)


def _torch_params(weights: RowWeights) -> list[Tensor]:
    """The parameters as torch has them: the merged bias first, b_hn where torch adds it."""
    w_ih, w_hh, bias, b_hn = weights
    inner = torch.zeros_like(bias) if b_hn is None else pad(b_hn, (2 * len(b_hn), 0))
    return [w_ih, w_hh, bias, inner]


def _with_hold_input(w_ih: Tensor, hold: tuple[int, ...]) -> Tensor:
    """Weights ``[G * H, I + 1]`` with one more input: 1 holds c, 0 does nothing."""
    signs = w_ih.new_tensor(hold).repeat_interleave(len(w_ih) // len(hold))
    return torch.cat([w_ih, SHUT * signs[:, None]], 1)


def _run(
    cell: Cell, x: Tensor, states: States, params: list[Tensor], *, batch_first: bool = False
) -> States:
    """Run one layer of torch's over a dense block."""
    options = True, 1, 0.0, True, False, batch_first
    if not x.is_cuda:
        return cell.torch_layers(x, states, params, *options)
    # cuDNN copies weights into one buffer, which is cheap next to the run
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")
        return cell.torch_layers(x, states, params, *options)


@dataclass(frozen=True)
class PaddedBlock:
    """A dense block: some steps of the longest segments."""

    shape: tuple[int, int]  # steps K and columns n
    padding: Tensor | None  # True where a cell is empty, bool [K, n, 1]; None without such cells


@dataclass(frozen=True)
class BlockPlan:
    """The blocks of a batch."""

    order: Tensor  # segments from the longest to the shortest, int64 [S]
    inverse: Tensor  # place of each segment in it, int64 [S]
    blocks: list[PaddedBlock]  # in order of time
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
        return cls(segments.order, segments.order.argsort(), blocks, rows, cells)

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


def _block(real: Tensor) -> PaddedBlock:
    steps, columns = real.shape
    return PaddedBlock((steps, columns), None if bool(real.all()) else (~real).unsqueeze(-1))


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
