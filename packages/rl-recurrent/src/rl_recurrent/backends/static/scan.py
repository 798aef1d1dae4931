"""A scan over columns of fixed shape, for code that is compiled or captured.

Its shapes follow from the number of rows and from ``max_length``, never from the data; nothing is
copied to the host. Under ``torch.compile`` each layer is one operator, forward and backward, so
that no graph grows with time. Only the states are kept for backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells import CELLS
from rl_recurrent.cells.cell import Cell, RowWeights, States
from rl_tensordict.torch_internals import assert_on_device


def layer(
    cell: Cell,
    x: Tensor,
    weights: RowWeights,
    states: States,
    segments: Segments,
    settings: Settings,
) -> States:
    """Run one layer in one direction: the states after every row, ``[M, H]`` each."""
    start, source, length, steps = _layout(segments, settings)
    inputs = scan_inputs(x, weights, states)
    return tuple(scan_rows(inputs, start, source, cell.name, length, steps))


def window_steps(length: int, num_rows: int, sequence: int) -> int:
    """Rows of a column that holds any segments of at most ``length`` rows."""
    # The last segment of a column starts in its window of L rows. It has at most L rows, and ends
    # with its sequence of T rows; that is where the window ends if L is a multiple of T.
    ends_with_it = length % sequence == 0
    return min(length if ends_with_it else length + min(length, sequence) - 1, num_rows)


def _layout(segments: Segments, settings: Settings) -> tuple[Tensor, Tensor, int, int]:
    """First rows, bool [M]; segment of each row, int64 [M]; rows of a window and of a column."""
    firsts, count = segments.offsets[:-1], segments.num_real
    start = torch.zeros(count, dtype=torch.bool, device=firsts.device).index_fill_(0, firsts, True)
    numbers = segments.spread(torch.arange(len(segments), device=firsts.device))
    length = settings.max_length
    if length is not None:
        length = min(length, max(count, 1))
        return start, numbers, length, window_steps(length, count, max(count, 1))
    length = segments.max_length
    # the last row of each segment, counted from the begin of its window
    reach = (firsts % length + segments.lengths).max() if length else 0
    return start, numbers, max(length, 1), int(reach)


@dataclass(frozen=True)
class Windows:
    """Columns of rows: a window of L rows each, and the rest of the segments that start in it."""

    # Column k holds rows k L to k L + steps. It owns the segments that start in its first L rows;
    # its other rows are computed and discarded.

    rows: Tensor  # row in each cell, int64 [steps, K]; the last row in cells past the end
    is_real: Tensor  # whether the column owns that row, bool [steps, K, 1]
    is_first: Tensor  # whether a segment of the column starts there, bool [steps, K, 1]
    cells: Tensor  # cell of each row, flattened, int64 [M]
    targets: Tensor  # the row of an owned cell, M in other cells, int64 [steps, K]

    @classmethod
    def of(cls, start: Tensor, length: int, steps: int) -> Windows:
        """Lay out the rows of segments that start at ``start``, bool ``[M]``."""
        # steps of 2 L - 1 are enough for any segments of at most L rows
        size = start.shape[0]
        columns = -(-size // length)
        numbers = torch.arange(size, device=start.device)
        # first row of each row's segment: the largest start so far
        firsts = torch.where(start, numbers, 0).cummax(0).values
        owner = firsts // length  # column of each row
        times = numbers - owner * length
        fits = (numbers - firsts < length) & (times < steps)
        # on CUDA the device reports this later, without a host sync
        assert_on_device(fits.all(), f"a segment is longer than max_length, which is {length}")
        grid = torch.arange(steps, device=start.device)[:, None]
        ahead = grid + length * torch.arange(columns, device=start.device)
        rows = ahead.clamp(max=size - 1)
        mine = owner[rows] == torch.arange(columns, device=start.device)
        is_real = mine & (ahead < size)
        is_first = (is_real & start[rows]).unsqueeze(-1)
        targets = torch.where(is_real, rows, size)
        return cls(rows, is_real.unsqueeze(-1), is_first, times * columns + owner, targets)


def scan_inputs(x: Tensor, weights: RowWeights, states: States) -> list[Tensor]:
    """The differentiable inputs of `scan_rows`: x, w_ih, w_hh, bias, states, then b_hn if any."""
    return [x, *weights[:3], *states, *([] if weights.b_hn is None else [weights.b_hn])]


@torch.library.custom_op("rl_recurrent::scan_rows", mutates_args=())
def scan_rows(
    inputs: list[Tensor], start: Tensor, source: Tensor, cell: str, length: int, steps: int
) -> list[Tensor]:
    """Scan one layer over rows: the states after every row, ``[M, H]`` each."""
    # x [M, I]; w_ih [G * H, I]; w_hh [G * H, H]; bias [G * H]; states [K, H]; b_hn [H]; start, the
    # first rows of segments, bool [M]; source, the state that a first row starts from, int64 [M]
    kind, windows = CELLS[cell], Windows.of(start, length, steps)
    x, w_ih, w_hh, bias, initial, b_hn = _named(inputs, kind)
    sums, products = torch.addmm(bias, x, w_ih.t()), kind.products(w_hh, b_hn)
    columns, size = windows.rows.shape[1], w_hh.shape[1]
    out = [x.new_empty(steps, columns, size) for _ in initial]
    scratch = x.new_empty(columns, size)
    states = [x.new_zeros(columns, size)] * len(out)
    for t, rows in enumerate(windows.rows):
        which, first = source.index_select(0, rows), windows.is_first[t]
        pairs = zip(initial, states, strict=True)
        states = [torch.where(first, s0.index_select(0, which), s) for s0, s in pairs]
        views, after = kind.views(sums.index_select(0, rows)), [each[t] for each in out]
        kind.open_(views, states[0], products, scratch)
        kind.advance(views, states, after, scratch)
        states = after
    return [each.flatten(0, 1).index_select(0, windows.cells) for each in out]


@torch.library.custom_op("rl_recurrent::scan_rows_backward", mutates_args=())
def _backward(  # noqa: PLR0913 - an operator takes tensors and numbers only
    inputs: list[Tensor],
    outputs: list[Tensor],
    grads: list[Tensor],
    start: Tensor,
    source: Tensor,
    cell: str,
    length: int,
    steps: int,
) -> list[Tensor]:
    kind, windows = CELLS[cell], Windows.of(start, length, steps)
    x, w_ih, w_hh, bias, initial, b_hn = _named(inputs, kind)
    size, pairs, starts = w_hh.shape[1], zip(outputs, initial, strict=True), start.unsqueeze(1)
    # the state before each row; roll wraps the last row to the first, which is a start
    before = [
        torch.where(starts, first.index_select(0, source), after.roll(1, 0))
        for after, first in pairs
    ]
    # the gates of all rows again, in one product: every state before a row is known
    gates = torch.addmm(bias, x, w_ih.t())
    inner = kind.open_(kind.views(gates), before[0], kind.products(w_hh, b_hn), None)
    hidden = before[0]
    factors = kind.factors_(gates, inner, before, outputs[-1].clone())
    # gradients of the gates; cells that their column does not own write into the last
    # row, as those of no first row do in the gradients of the states that segments start from
    d_gates, whole = x.new_empty(len(x) + 1, len(w_hh)), x.new_empty(len(x) + 1, size)
    d_initial = [state.new_zeros(len(state) + 1, size) for state in initial]
    carried = [x.new_zeros(windows.rows.shape[1], size)] * len(initial)
    for t in reversed(range(steps)):
        rows, foreign, target = windows.rows[t], ~windows.is_real[t], windows.targets[t]
        d_states = [c + g.index_select(0, rows) for c, g in zip(carried, grads, strict=True)]
        step = factors.gates.index_select(0, rows)  # [K, G, H]
        parts = *kind.factor_views(step), *(each.index_select(0, rows) for each in factors.steps)
        carry = kind.gradients_(parts, d_states).masked_fill_(foreign, 0)
        da = step.flatten(1).masked_fill_(foreign, 0)
        d_gates.index_copy_(0, target, da)
        if b_hn is None:  # c carries its gradient, h has none but that through w_hh
            carried = [da @ w_hh, carry]
        else:
            whole.index_copy_(0, target, d_states[0])
            carried = [carry.addmm_(da, w_hh)]
        which = source.index_select(0, rows)
        _move_to_initial_states(windows.is_first[t], which, d_initial, carried)
    d_gates = d_gates[:-1]
    d_w_hh, last = d_gates.t() @ hidden, [each[:-1].clone() for each in d_initial]
    if factors.new_input is not None:
        new = d_gates[:, 2 * size :]
        last.append(new.sum(0))  # of b_hn
        # w_hh took da_n * r, the inputs take da_n = C * dh
        torch.mul(factors.new_input, whole[:-1], out=new)
    return [d_gates @ w_ih, d_gates.t() @ x, d_w_hh, d_gates.sum(0), *last]


def _named(
    inputs: list[Tensor], cell: Cell
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], Tensor | None]:
    """x, w_ih, w_hh, the bias, the states, and b_hn of a GRU."""
    x, w_ih, w_hh, bias, *rest = inputs
    states, b_hn = rest[: cell.num_states], rest[cell.num_states :]
    return x, w_ih, w_hh, bias, states, b_hn[0] if b_hn else None


def _move_to_initial_states(
    first: Tensor, which: Tensor, d_initial: list[Tensor], carried: list[Tensor]
) -> None:
    """Move the gradient at the first row of a segment to the state that it started from."""
    for d_states, gradient in zip(d_initial, carried, strict=True):
        # columns whose cell is no first row write into the spare row: no host sync, fixed shape
        spare = torch.where(first[:, 0], which, len(d_states) - 1)
        d_states.index_copy_(0, spare, gradient)
        gradient.masked_fill_(first, 0)


@scan_rows.register_fake
def _(inputs: list[Tensor], start: Tensor, source: Tensor, cell: str, *_: Any) -> list[Tensor]:
    x, w_hh = inputs[0], inputs[2]
    return [x.new_empty(x.shape[0], w_hh.shape[1]) for _ in range(CELLS[cell].num_states)]


@_backward.register_fake
def _(inputs: list[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in inputs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, start, source, *ctx.layout = inputs
    ctx.num_inputs = len(tensors)
    ctx.save_for_backward(*tensors, *output, start, source)


def _gradients(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    *tensors, start, source = ctx.saved_tensors
    inputs, outputs = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
    made = _backward(inputs, outputs, list(grads), start, source, *ctx.layout)
    return made, None, None, None, None, None


scan_rows.register_autograd(_gradients, setup_context=_save)
