"""A scan over columns of fixed shape, for code that is compiled or captured.

Its shapes follow from the number of rows and from ``max_length``, never from the data; nothing is
copied to the host. Under ``torch.compile`` each layer is one operator, forward and backward, so
that no graph grows with time. Only the states are kept for backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.settings import Settings
from rl_recurrent.backends.static.windows import Windows
from rl_recurrent.cells import pointwise
from rl_recurrent.cells.pointwise import GRUGates, LSTMGates
from rl_recurrent.cells.weights import RowWeights


def lstm_layer(
    x: Tensor,
    weights: RowWeights,
    states: tuple[Tensor, Tensor],
    segments: Segments,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Run one layer of an LSTM in one direction: h and c after every row, ``[M, H]`` each."""
    start, source, length, steps = _layout(segments, settings)
    w_ih, w_hh, bias, _ = weights
    states_after: tuple[Tensor, Tensor] = lstm_scan_rows(
        x, w_ih, w_hh, bias, *states, start, source, length, steps
    )
    return states_after


def gru_layer(
    x: Tensor, weights: RowWeights, state: Tensor, segments: Segments, settings: Settings
) -> Tensor:
    """Run one layer of a GRU in one direction: h after every row, ``[M, H]``."""
    start, source, length, steps = _layout(segments, settings)
    hidden: Tensor = gru_scan_rows(x, *weights, state, start, source, length, steps)
    return hidden


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


@torch.library.custom_op("rl_recurrent::lstm_scan_rows", mutates_args=())
def lstm_scan_rows(  # noqa: PLR0913 - an operator takes tensors and numbers only
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor,
    h0: Tensor,
    c0: Tensor,
    start: Tensor,
    source: Tensor,
    length: int,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """Scan an LSTM over rows: h and c after every row, ``[M, H]`` each."""
    # x [M, I]; w_ih [4H, I]; w_hh [4H, H]; bias [4H]; h0 and c0 [K, H]; start, first rows of
    # segments, bool [M]; source, the state that a first row starts from, int64 [M]
    windows = Windows.of(start, length, steps)
    gates = torch.addmm(bias, x, w_ih.t())
    columns, size = windows.rows.shape[1], w_hh.shape[1]
    hidden, cells = (x.new_empty(steps, columns, size) for _ in range(2))
    scratch = x.new_empty(columns, size)
    h = c = x.new_zeros(columns, size)
    for t, rows in enumerate(windows.rows):
        which, first = source.index_select(0, rows), windows.is_first[t]
        h = torch.where(first, h0.index_select(0, which), h)
        c = torch.where(first, c0.index_select(0, which), c)
        step = LSTMGates.of(gates.index_select(0, rows).addmm_(h, w_hh.t()))
        pointwise.lstm_gates_(step)
        pointwise.lstm_states(step, c, (hidden[t], cells[t]), scratch)
        h, c = hidden[t], cells[t]
    return _rows_of(hidden, windows), _rows_of(cells, windows)


@torch.library.custom_op("rl_recurrent::lstm_scan_rows_backward", mutates_args=())
def _lstm_backward(  # noqa: PLR0913 - an operator takes tensors and numbers only
    tensors: list[Tensor],
    hidden: Tensor,
    cell: Tensor,
    d_hidden: Tensor | None,
    d_cell: Tensor | None,
    length: int,
    steps: int,
) -> list[Tensor]:
    x, w_ih, w_hh, bias, h0, c0, start, source = tensors
    windows = Windows.of(start, length, steps)
    h_before, c_before = _before(hidden, h0, start, source), _before(cell, c0, start, source)
    gates = torch.addmm(bias, x, w_ih.t()).addmm_(h_before, w_hh.t())
    pointwise.lstm_gates_(LSTMGates.of(gates))
    factors, hidden_to_cell, forget = pointwise.lstm_factors_(gates, c_before, cell.clone())
    # gradients of the gates; cells that their column does not own write into the last row
    d_gates = x.new_empty(len(x) + 1, 4 * w_hh.shape[1])
    dh0, dc0 = _with_spare(h0), _with_spare(c0)
    dh = dc = x.new_zeros(windows.rows.shape[1], w_hh.shape[1])
    for t in reversed(range(steps)):
        rows, foreign, first = windows.rows[t], ~windows.is_real[t], windows.is_first[t]
        dh = _add_output_gradient(dh, d_hidden, rows).masked_fill_(foreign, 0)
        dc = _add_output_gradient(dc, d_cell, rows).addcmul_(
            dh, hidden_to_cell.index_select(0, rows)
        )
        dc.masked_fill_(foreign, 0)
        step = factors.index_select(0, rows)  # [K, 4, H]: i, f, g take dc, o takes dh
        step[:, :3].mul_(dc.unsqueeze(1))
        step[:, 3].mul_(dh)
        da = step.flatten(1).masked_fill_(foreign, 0)
        d_gates.index_copy_(0, windows.targets[t], da)
        dh, dc = da @ w_hh, (dc * forget.index_select(0, rows)).masked_fill_(foreign, 0)
        _move_to_initial_states(first, source.index_select(0, rows), (dh0, dh), (dc0, dc))
    d_gates = d_gates[:-1]
    d_inputs = [d_gates @ w_ih, d_gates.t() @ x, d_gates.t() @ h_before, d_gates.sum(0)]
    return [*d_inputs, dh0[:-1].clone(), dc0[:-1].clone()]


@torch.library.custom_op("rl_recurrent::gru_scan_rows", mutates_args=())
def gru_scan_rows(  # noqa: PLR0913 - an operator takes tensors and numbers only
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor,
    b_hn: Tensor,
    h0: Tensor,
    start: Tensor,
    source: Tensor,
    length: int,
    steps: int,
) -> Tensor:
    """Scan a GRU over rows: h after every row, ``[M, H]``."""
    # x [M, I]; w_ih [3H, I]; w_hh [3H, H]; bias [3H]; b_hn [H]; h0 [K, H]; start and source as in
    # `lstm_scan_rows`
    windows = Windows.of(start, length, steps)
    gates = torch.addmm(bias, x, w_ih.t())
    columns, size = windows.rows.shape[1], w_hh.shape[1]
    w_rz, w_n = w_hh.split([2 * size, size])
    hidden = x.new_empty(steps, columns, size)
    h = x.new_zeros(columns, size)
    for t, rows in enumerate(windows.rows):
        h = torch.where(windows.is_first[t], h0.index_select(0, source.index_select(0, rows)), h)
        step = GRUGates.of(gates.index_select(0, rows))
        step.r_z.addmm_(h, w_rz.t())
        pointwise.gru_gates_(step, torch.addmm(b_hn, h, w_n.t()))
        pointwise.gru_state(step, h, hidden[t])
        h = hidden[t]
    return _rows_of(hidden, windows)


@torch.library.custom_op("rl_recurrent::gru_scan_rows_backward", mutates_args=())
def _gru_backward(
    tensors: list[Tensor], hidden: Tensor, d_hidden: Tensor, length: int, steps: int
) -> list[Tensor]:
    x, w_ih, w_hh, bias, b_hn, h0, start, source = tensors
    windows, size = Windows.of(start, length, steps), w_hh.shape[1]
    before = _before(hidden, h0, start, source)
    w_rz, w_n = w_hh.split([2 * size, size])
    gates, inner = torch.addmm(bias, x, w_ih.t()), torch.addmm(b_hn, before, w_n.t())
    gates[:, : 2 * size].addmm_(before, w_rz.t())
    pointwise.gru_gates_(GRUGates.of(gates), inner)
    factors, hidden_to_new, update = pointwise.gru_factors_(gates, inner, before)
    # gradients of the gates; cells that their column does not own write into the last row
    d_gates = x.new_empty(len(x) + 1, 3 * size)
    whole, dh0 = x.new_empty(len(x) + 1, size), _with_spare(h0)
    dh = x.new_zeros(windows.rows.shape[1], size)
    for t in reversed(range(steps)):
        rows, foreign, target = windows.rows[t], ~windows.is_real[t], windows.targets[t]
        dh = _add_output_gradient(dh, d_hidden, rows).masked_fill_(foreign, 0)
        da = (factors.index_select(0, rows) * dh.unsqueeze(1)).flatten(1).masked_fill_(foreign, 0)
        d_gates.index_copy_(0, target, da)
        whole.index_copy_(0, target, dh)
        direct = (dh * update.index_select(0, rows)).masked_fill_(foreign, 0)
        dh = direct.addmm_(da, w_hh)
        _move_to_initial_states(windows.is_first[t], source.index_select(0, rows), (dh0, dh))
    d_gates, whole = d_gates[:-1], whole[:-1]
    d_w_hh, d_b_hn = d_gates.t() @ before, d_gates[:, 2 * size :].sum(0)
    # w_hh took da_n * r, the inputs take da_n = C * dh
    torch.mul(hidden_to_new, whole, out=d_gates[:, 2 * size :])
    d_inputs = [d_gates @ w_ih, d_gates.t() @ x, d_w_hh, d_gates.sum(0), d_b_hn]
    return [*d_inputs, dh0[:-1].clone()]


def _rows_of(states: Tensor, windows: Windows) -> Tensor:
    return states.flatten(0, 1).index_select(0, windows.cells)


def _before(states: Tensor, first: Tensor, start: Tensor, source: Tensor) -> Tensor:
    """The state before each row, ``[M, H]``."""
    # roll wraps the last row to the first, which is a start and takes its own state
    return torch.where(start.unsqueeze(1), first.index_select(0, source), states.roll(1, 0))


def _with_spare(states: Tensor) -> Tensor:
    """Zeros for the gradients of states ``[K, H]``, and a spare row for cells without an owner."""
    return states.new_zeros(len(states) + 1, states.shape[1])


def _add_output_gradient(carried: Tensor, grad: Tensor | None, rows: Tensor) -> Tensor:
    return carried.clone() if grad is None else carried + grad.index_select(0, rows)


def _move_to_initial_states(first: Tensor, which: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Move the gradient at the first row of a segment to the state that it started from."""
    for d_states, carried in pairs:
        # columns whose cell is no first row write into the spare row: no host sync, fixed shape
        spare = torch.where(first[:, 0], which, len(d_states) - 1)
        d_states.index_copy_(0, spare, carried)
        carried.masked_fill_(first, 0)


@lstm_scan_rows.register_fake
def _(x: Tensor, w_ih: Tensor, w_hh: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], w_hh.shape[1]), x.new_empty(x.shape[0], w_hh.shape[1])


@gru_scan_rows.register_fake
def _(x: Tensor, w_ih: Tensor, w_hh: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], w_hh.shape[1])


@_lstm_backward.register_fake
@_gru_backward.register_fake
def _(tensors: list[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors[:6]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.length, ctx.steps = inputs
    ctx.num_outputs = len(output) if isinstance(output, tuple) else 1
    ctx.save_for_backward(*tensors, *(output if ctx.num_outputs > 1 else (output,)))


def _lstm_grads(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    *tensors, hidden, cell = ctx.saved_tensors
    gradients = _lstm_backward(tensors, hidden, cell, *grads, ctx.length, ctx.steps)
    return (*gradients, None, None, None, None)


def _gru_grads(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    *tensors, hidden = ctx.saved_tensors
    return (*_gru_backward(tensors, hidden, *grads, ctx.length, ctx.steps), None, None, None, None)


lstm_scan_rows.register_autograd(_lstm_grads, setup_context=_save)
gru_scan_rows.register_autograd(_gru_grads, setup_context=_save)
