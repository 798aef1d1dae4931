"""GRU recurrence over segments: each program walks a tile of segments of similar length.

Rows: ``row = start + t``. S, J, K in comments are a program's segments, its columns of the hidden
state, and its slice of the sum over it. ``pre`` [M, 4H] holds what the activations are made of: the
sums under r and z, the input's part of n, and the hidden state's part of n, which r scales. Its
gradient [M, 4H] holds dr, dz, dn and r dn: the first three belong to the gates, and the first two
with the last to ``w_hh``. Resident and streamed kernels differ as in `lstm_kernels`.
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
def load_gates(rows, live, H):
    """Gates r, z, n [S, J] of one row each, as float32."""
    r = tl.load(rows, mask=live, other=0.0).to(tl.float32)
    z = tl.load(rows + H, mask=live, other=0.0).to(tl.float32)
    n = tl.load(rows + 2 * H, mask=live, other=0.0).to(tl.float32)
    return r, z, n


@triton.jit
def load_weights(square, inside, H):
    """The three square blocks [K, J] of ``w_hh``, from the addresses of the first."""
    w_r = tl.load(square, mask=inside, other=0.0)
    w_z = tl.load(square + H * H, mask=inside, other=0.0)
    w_n = tl.load(square + 2 * H * H, mask=inside, other=0.0)
    return w_r, w_z, w_n


@triton.jit
def state_update(r, z, x, q, h):
    """New hidden state [S, J] from pre-activations and the state before."""
    n = tanh(x + sigmoid(r) * q)
    return n + sigmoid(z) * (h - n)


@triton.jit
def state_gradient(r, z, x, q, h, dh):
    """Gradients dr, dz, dn, r dn, and the direct gradient of the state before, each [S, J]."""
    r, z = sigmoid(r), sigmoid(z)
    n = tanh(x + r * q)
    dn = dh * (1.0 - z) * (1.0 - n * n)
    dz = dh * (h - n) * z * (1.0 - z)
    dr = dn * q * r * (1.0 - r)
    return dr, dz, dn, dn * r, dh * z


@triton.jit(do_not_specialize=["num_segments"])
def forward_resident(
    gates,
    w_hh,
    b_hn,
    h0,
    hidden,
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
    """Hidden state of every row, with ``w_hh`` loaded once."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    j = tl.arange(0, BLOCK_H)
    inside = j[None, :] < H
    live = (steps > 0)[:, None] & inside
    h = tl.load(h0 + segment[:, None] * H + j[None, :], mask=live, other=0.0)
    square = w_hh + j[None, :] * H + j[:, None]  # [K, J]: transposed
    w_r, w_z, w_n = load_weights(square, inside & (j[:, None] < H), H)
    b = tl.load(b_hn + j, mask=j < H, other=0.0)
    b = tl.broadcast_to(b[None, :], [BLOCK_S, BLOCK_H])
    x_r, x_z, x_n = load_gates(gates + start[:, None] * 3 * H + j[None, :], live, H)
    for t in range(longest):
        row = (start + t)[:, None]
        # the next row's gates are asked for before the products, which do not need them
        later = (t + 1 < steps)[:, None] & inside
        y_r, y_z, y_n = load_gates(gates + (row + 1) * 3 * H + j[None, :], later, H)
        rounded = operand(h, w_hh.dtype.element_ty, PRECISION)
        r = tl.dot(rounded, w_r, x_r, input_precision=PRECISION)
        z = tl.dot(rounded, w_z, x_z, input_precision=PRECISION)
        q = tl.dot(rounded, w_n, b, input_precision=PRECISION)
        if KEEP:
            store_four(pre + row * 4 * H + j[None, :], live, H, r, z, x_n, q)
        h = state_update(r, z, x_n, q, h)
        tl.store(hidden + row * H + j[None, :], h, mask=live)
        x_r, x_z, x_n, live = y_r, y_z, y_n, later


@triton.jit(do_not_specialize=["num_segments"])
def backward_resident(
    w_hh,
    h0,
    hidden,
    pre,
    d_hidden,
    d_pre,  # may be pre itself: each element is read before its gradient is written there
    carry,  # direct gradient of the initial state [num_segments, H], without that through w_hh
    order,
    first,
    length,
    num_segments,
    H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of the pre-activations of every row, with ``w_hh`` loaded once."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    j = tl.arange(0, BLOCK_H)
    inside = j[None, :] < H
    square = w_hh + j[:, None] * H + j[None, :]  # [K, J]
    w_r, w_z, w_n = load_weights(square, inside & (j[:, None] < H), H)
    direct = tl.full([BLOCK_S, BLOCK_H], 0.0, tl.float32)
    through = tl.full([BLOCK_S, BLOCK_H], 0.0, tl.float32)
    for back in range(longest):
        t = longest - 1 - back
        live = (t < steps)[:, None] & inside
        row = start + t
        place = row[:, None] * H + j[None, :]
        r, z, x, q = load_four(pre + row[:, None] * 4 * H + j[None, :], live, H)
        h = state_before(h0, hidden, segment, start, row, j, live, H)
        dh = direct + through + tl.load(d_hidden + place, mask=live, other=0.0).to(tl.float32)
        dr, dz, dn, dq, direct = state_gradient(r, z, x, q, h, dh)
        store_four(d_pre + row[:, None] * 4 * H + j[None, :], live, H, dr, dz, dn, dq)
        dtype = w_hh.dtype.element_ty
        through = tl.dot(operand(dr, dtype, PRECISION), w_r, input_precision=PRECISION)
        through = tl.dot(operand(dz, dtype, PRECISION), w_z, through, input_precision=PRECISION)
        through = tl.dot(operand(dq, dtype, PRECISION), w_n, through, input_precision=PRECISION)
    tl.store(carry + segment[:, None] * H + j[None, :], direct, mask=(steps > 0)[:, None] & inside)


@triton.jit(do_not_specialize=["num_segments", "begin", "end"])
def forward_streamed(
    gates,
    w_hh,
    b_hn,
    h0,
    hidden,
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
            r, z, x = load_gates(gates + row[:, None] * 3 * H + j[None, :], live, H)
            b = tl.load(b_hn + j, mask=j < H, other=0.0)
            q = tl.broadcast_to(b[None, :], [BLOCK_S, BLOCK_J])
            for k_first in range(0, H, BLOCK_K):
                k = k_first + tl.arange(0, BLOCK_K)
                h = state_before(h0, hidden, segment, start, row, k, on & (k[None, :] < H), H)
                h = operand(h, w_hh.dtype.element_ty, PRECISION)
                square = w_hh + j[None, :] * H + k[:, None]  # [K, J]: transposed
                inside = (j[None, :] < H) & (k[:, None] < H)
                w_r, w_z, w_n = load_weights(square, inside, H)
                r = tl.dot(h, w_r, r, input_precision=PRECISION)
                z = tl.dot(h, w_z, z, input_precision=PRECISION)
                q = tl.dot(h, w_n, q, input_precision=PRECISION)
            if KEEP:
                store_four(pre + row[:, None] * 4 * H + j[None, :], live, H, r, z, x, q)
            before = state_before(h0, hidden, segment, start, row, j, live, H)
            after = state_update(r, z, x, q, before)
            tl.store(hidden + row[:, None] * H + j[None, :], after, mask=live)
        tl.debug_barrier()  # the next step reads rows that other threads of this program stored


@triton.jit(do_not_specialize=["num_segments", "begin", "end"])
def backward_streamed(
    w_hh,
    h0,
    hidden,
    pre,
    d_hidden,
    d_pre,  # may be pre itself: each element is read before its gradient is written there
    carry,  # zeros at first; direct gradient of the state before the step, [num_segments, H]
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
):
    """Steps ``end - 1`` down to ``begin``; programs share a tile only where that is one step."""
    segment, start, steps, longest = tile_of_segments(order, first, length, num_segments, BLOCK_S)
    for t in range(tl.minimum(end, longest) - 1, begin - 1, -1):
        row = start + t
        for block in range(tl.program_id(1), (H + BLOCK_J - 1) // BLOCK_J, tl.num_programs(1)):
            j = block * BLOCK_J + tl.arange(0, BLOCK_J)
            live = (t < steps)[:, None] & (j[None, :] < H)
            place = row[:, None] * H + j[None, :]
            direct_at = carry + segment[:, None] * H + j[None, :]
            dh = tl.load(d_hidden + place, mask=live, other=0.0).to(tl.float32)
            dh += tl.load(direct_at, mask=live, other=0.0)
            for k_first in range(0, 3 * H, BLOCK_K):
                k = k_first + tl.arange(0, BLOCK_K)
                column = tl.where(k < 2 * H, k, k + H)  # dr, dz and r dn: not dn
                later = (t + 1 < steps)[:, None] & (k[None, :] < 3 * H)
                da = tl.load(d_pre + (row + 1)[:, None] * 4 * H + column[None, :], later, other=0.0)
                inside = (j[None, :] < H) & (k[:, None] < 3 * H)
                w = tl.load(w_hh + k[:, None] * H + j[None, :], mask=inside, other=0.0)  # [K, J]
                dh = tl.dot(operand(da, w.dtype, PRECISION), w, dh, input_precision=PRECISION)
            r, z, x, q = load_four(pre + row[:, None] * 4 * H + j[None, :], live, H)
            h = state_before(h0, hidden, segment, start, row, j, live, H)
            dr, dz, dn, dq, direct = state_gradient(r, z, x, q, h, dh)
            store_four(d_pre + row[:, None] * 4 * H + j[None, :], live, H, dr, dz, dn, dq)
            tl.store(direct_at, direct, mask=live)
        tl.debug_barrier()  # the step before reads gradients that other threads stored
