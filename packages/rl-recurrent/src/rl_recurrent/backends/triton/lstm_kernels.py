"""LSTM recurrence over segments: each program walks a tile of segments of similar length.

Rows: ``row = start + t``. S, J, K in comments are a program's segments, its columns of the hidden
state, and its slice of the sum over it. ``pre`` holds pre-activations [M, 4H], gates i, f, g, o.
The resident kernels keep ``w_hh`` and the state on chip and suit small H; the streamed ones take
any H. They read rows back that the same program has stored, always after a barrier.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a kernel takes its tensors one by one, as untyped pointers

import triton
import triton.language as tl

from rl_recurrent.backends.triton.tiles import (
    load_four,
    operand,
    sigmoid,
    state_before,
    store_four,
    tanh,
    tile_of_segments,
)


@triton.jit
def cell_update(i, f, g, o, c):
    """New hidden and cell state [S, J] from pre-activations and the cell state before."""
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@triton.jit
def cell_gradient(i, f, g, o, c, c_before, dh, dc):
    """Gradients of the pre-activations, and of the cell state before, each [S, J]."""
    i, f, g, o, y = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o), tanh(c)
    dc += dh * o * (1.0 - y * y)
    di = dc * g * i * (1.0 - i)
    df = dc * c_before * f * (1.0 - f)
    dg = dc * i * (1.0 - g * g)
    do = dh * y * o * (1.0 - o)
    return di, df, dg, do, dc * f


@triton.jit
def load_weights(square, inside, H):
    """The four square blocks [K, J] of ``w_hh``, from the addresses of the first."""
    w_i = tl.load(square, mask=inside, other=0.0)
    w_f = tl.load(square + H * H, mask=inside, other=0.0)
    w_g = tl.load(square + 2 * H * H, mask=inside, other=0.0)
    w_o = tl.load(square + 3 * H * H, mask=inside, other=0.0)
    return w_i, w_f, w_g, w_o


@triton.jit(do_not_specialize=["num_segments"])
def forward_resident(
    gates,
    w_hh,
    h0,
    c0,
    hidden,
    cell,
    pre,
    order,
    first,
    length,
    num_segments,
    H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,  # at least H: one block holds the whole hidden state
    PRECISION: tl.constexpr,
    KEEP: tl.constexpr,  # whether to write pre
):
    """Hidden and cell state of every row, with ``w_hh`` loaded once."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    j = tl.arange(0, BLOCK_H)
    inside = j[None, :] < H
    at_start = (steps > 0)[:, None] & inside
    h = tl.load(h0 + segment[:, None] * H + j[None, :], mask=at_start, other=0.0)
    c = tl.load(c0 + segment[:, None] * H + j[None, :], mask=at_start, other=0.0)
    square = w_hh + j[None, :] * H + j[:, None]  # [K, J]: transposed
    w_i, w_f, w_g, w_o = load_weights(square, inside & (j[:, None] < H), H)
    live = at_start
    place = start[:, None] * 4 * H + j[None, :]
    x_i, x_f, x_g, x_o = load_four(gates + place, live, H)
    for t in range(longest):
        row = (start + t)[:, None]
        # the next row's gates are asked for before the products, which do not need them
        later = (t + 1 < steps)[:, None] & inside
        y_i, y_f, y_g, y_o = load_four(gates + (row + 1) * 4 * H + j[None, :], later, H)
        rounded = operand(h, w_hh.dtype.element_ty, PRECISION)
        i = tl.dot(rounded, w_i, x_i, input_precision=PRECISION)
        f = tl.dot(rounded, w_f, x_f, input_precision=PRECISION)
        g = tl.dot(rounded, w_g, x_g, input_precision=PRECISION)
        o = tl.dot(rounded, w_o, x_o, input_precision=PRECISION)
        if KEEP:
            store_four(pre + row * 4 * H + j[None, :], live, H, i, f, g, o)
        h, c = cell_update(i, f, g, o, c)
        tl.store(hidden + row * H + j[None, :], h, mask=live)
        tl.store(cell + row * H + j[None, :], c, mask=live)
        x_i, x_f, x_g, x_o, live = y_i, y_f, y_g, y_o, later


@triton.jit(do_not_specialize=["num_segments"])
def backward_resident(
    w_hh,
    c0,
    cell,
    pre,
    d_hidden,
    d_cell,
    d_pre,  # may be pre itself: each element is read before its gradient is written there
    carry,  # gradient of the initial cell state [num_segments, H]
    order,
    first,
    length,
    num_segments,
    H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PRECISION: tl.constexpr,
    CELL_USED: tl.constexpr,  # whether there is a d_cell
):
    """Gradients of the pre-activations of every row, with ``w_hh`` loaded once."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    j = tl.arange(0, BLOCK_H)
    inside = j[None, :] < H
    square = w_hh + j[:, None] * H + j[None, :]  # [K, J]
    w_i, w_f, w_g, w_o = load_weights(square, inside & (j[:, None] < H), H)
    dh_later = tl.full([BLOCK_S, BLOCK_H], 0.0, tl.float32)
    dc = tl.full([BLOCK_S, BLOCK_H], 0.0, tl.float32)
    for back in range(longest):
        t = longest - 1 - back
        live = (t < steps)[:, None] & inside
        row = start + t
        place = row[:, None] * H + j[None, :]
        i, f, g, o = load_four(pre + row[:, None] * 4 * H + j[None, :], live, H)
        c = tl.load(cell + place, mask=live, other=0.0)
        c_before = state_before(c0, cell, segment, start, row, j, live, H)
        dh = dh_later + tl.load(d_hidden + place, mask=live, other=0.0).to(tl.float32)
        if CELL_USED:
            dc += tl.load(d_cell + place, mask=live, other=0.0).to(tl.float32)
        di, df, dg, do, dc = cell_gradient(i, f, g, o, c, c_before, dh, dc)
        store_four(d_pre + row[:, None] * 4 * H + j[None, :], live, H, di, df, dg, do)
        dtype = w_hh.dtype.element_ty
        dh_later = tl.dot(operand(di, dtype, PRECISION), w_i, input_precision=PRECISION)
        dh_later = tl.dot(operand(df, dtype, PRECISION), w_f, dh_later, input_precision=PRECISION)
        dh_later = tl.dot(operand(dg, dtype, PRECISION), w_g, dh_later, input_precision=PRECISION)
        dh_later = tl.dot(operand(do, dtype, PRECISION), w_o, dh_later, input_precision=PRECISION)
    tl.store(carry + segment[:, None] * H + j[None, :], dc, mask=(steps > 0)[:, None] & inside)


@triton.jit(do_not_specialize=["num_segments", "begin", "end"])
def forward_streamed(
    gates,
    w_hh,
    h0,
    c0,
    hidden,
    cell,
    pre,
    order,
    first,
    length,
    num_segments,
    begin,  # first step of this launch
    end,  # the step after its last
    H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Steps ``begin`` to ``end``; several programs share a tile only where that is one step."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    for t in range(begin, tl.minimum(end, longest)):
        row = start + t
        on = (t < steps)[:, None]
        for block in range(tl.program_id(1), (H + BLOCK_J - 1) // BLOCK_J, tl.num_programs(1)):
            j = block * BLOCK_J + tl.arange(0, BLOCK_J)
            live = on & (j[None, :] < H)
            place = row[:, None] * 4 * H + j[None, :]
            i, f, g, o = load_four(gates + place, live, H)
            for k_first in range(0, H, BLOCK_K):
                k = k_first + tl.arange(0, BLOCK_K)
                h = state_before(h0, hidden, segment, start, row, k, on & (k[None, :] < H), H)
                h = operand(h, w_hh.dtype.element_ty, PRECISION)
                square = w_hh + j[None, :] * H + k[:, None]  # [K, J]: transposed
                inside = (j[None, :] < H) & (k[:, None] < H)
                w_i, w_f, w_g, w_o = load_weights(square, inside, H)
                i = tl.dot(h, w_i, i, input_precision=PRECISION)
                f = tl.dot(h, w_f, f, input_precision=PRECISION)
                g = tl.dot(h, w_g, g, input_precision=PRECISION)
                o = tl.dot(h, w_o, o, input_precision=PRECISION)
            if KEEP:
                store_four(pre + place, live, H, i, f, g, o)
            c = state_before(c0, cell, segment, start, row, j, live, H)
            h, c = cell_update(i, f, g, o, c)
            tl.store(hidden + row[:, None] * H + j[None, :], h, mask=live)
            tl.store(cell + row[:, None] * H + j[None, :], c, mask=live)
        tl.debug_barrier()  # the next step reads rows that other threads of this program stored


@triton.jit(do_not_specialize=["num_segments", "begin", "end"])
def backward_streamed(
    w_hh,
    c0,
    cell,
    pre,
    d_hidden,
    d_cell,
    d_pre,  # may be pre itself: each element is read before its gradient is written there
    carry,  # zeros at first; gradient of the cell state before the step, [num_segments, H]
    order,
    first,
    length,
    num_segments,
    begin,
    end,
    H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    CELL_USED: tl.constexpr,
):
    """Steps ``end - 1`` down to ``begin``; programs share a tile only where that is one step."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    for t in range(tl.minimum(end, longest) - 1, begin - 1, -1):
        row = start + t
        for block in range(tl.program_id(1), (H + BLOCK_J - 1) // BLOCK_J, tl.num_programs(1)):
            j = block * BLOCK_J + tl.arange(0, BLOCK_J)
            live = (t < steps)[:, None] & (j[None, :] < H)
            place = row[:, None] * H + j[None, :]
            dh = tl.load(d_hidden + place, mask=live, other=0.0).to(tl.float32)
            for k_first in range(0, 4 * H, BLOCK_K):
                k = k_first + tl.arange(0, BLOCK_K)
                later = (t + 1 < steps)[:, None] & (k[None, :] < 4 * H)
                da = tl.load(d_pre + (row + 1)[:, None] * 4 * H + k[None, :], later, other=0.0)
                inside = (j[None, :] < H) & (k[:, None] < 4 * H)
                w = tl.load(w_hh + k[:, None] * H + j[None, :], mask=inside, other=0.0)  # [K, J]
                dh = tl.dot(operand(da, w.dtype, PRECISION), w, dh, input_precision=PRECISION)
            dc_at = carry + segment[:, None] * H + j[None, :]
            dc = tl.load(dc_at, mask=live, other=0.0)
            if CELL_USED:
                dc += tl.load(d_cell + place, mask=live, other=0.0).to(tl.float32)
            i, f, g, o = load_four(pre + row[:, None] * 4 * H + j[None, :], live, H)
            c = tl.load(cell + place, mask=live, other=0.0)
            c_before = state_before(c0, cell, segment, start, row, j, live, H)
            di, df, dg, do, dc = cell_gradient(i, f, g, o, c, c_before, dh, dc)
            store_four(d_pre + row[:, None] * 4 * H + j[None, :], live, H, di, df, dg, do)
            tl.store(dc_at, dc, mask=live)
        tl.debug_barrier()  # the step before reads gradients that other threads stored
