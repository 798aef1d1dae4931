"""GRU and LSTM in loops that numba compiles, forward and backward: the only file that needs it.

Columns are segments, from the longest to the shortest; a few of them at a time walk through time,
so that everything they need stays in the cache. Rows of scratch arrays are columns: those that
are long enough for a step are the first ones.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

import numpy as np
from numba import njit

COLUMNS = 64  # segments at a time: 32 would load weights twice as often, 128 leave the cache
HALF, ONE = np.float32(0.5), np.float32(1)
# tanh(x) = x P(x²) / Q(x²) for |x| <= 9, fitted so that the largest error is least: 1e-9, and
# 4e-7 in float32
LIMIT = np.float32(9)
P0, P1, P2 = np.float32(0.999999996), np.float32(0.137818329), np.float32(0.00400407978)
P3, P4 = np.float32(3.14973515e-05), np.float32(5.0467075e-08)
Q1, Q2, Q3 = np.float32(0.471151643), np.float32(0.0277213189), np.float32(0.000419955483)
Q4, Q5 = np.float32(1.61064939e-06), np.float32(7.31828226e-10)

# contraction to fused multiply-adds alone: sums keep their order, NaN and infinity their meaning
loop = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def tanh(x):
    """Hyperbolic tangent in operations that a compiler does to sixteen numbers at once."""
    x = -LIMIT if x < -LIMIT else x  # NaN stays NaN
    x = LIMIT if x > LIMIT else x
    s = x * x
    above = x * ((((P4 * s + P3) * s + P2) * s + P1) * s + P0)
    return above / (((((Q5 * s + Q4) * s + Q3) * s + Q2) * s + Q1) * s + ONE)


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def logistic(x):
    """1 / (1 + exp(-x))."""
    return HALF + HALF * tanh(HALF * x)


@loop
def add_product(out, a, w):
    """Add a @ w to out: a ``[n, K]``, w ``[K, N]``; four rows by four at once."""
    n, depth, width = a.shape[0], a.shape[1], w.shape[1]
    fours, deep = n - n % 4, depth - depth % 4
    # each weight that is loaded serves four rows, each sum that is loaded four products; numba does
    # not keep small arrays in registers, so the sixteen factors have names
    for i in range(0, fours, 4):
        for k in range(0, deep, 4):
            a00, a01, a02, a03 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
            a10, a11, a12, a13 = a[i + 1, k], a[i + 1, k + 1], a[i + 1, k + 2], a[i + 1, k + 3]
            a20, a21, a22, a23 = a[i + 2, k], a[i + 2, k + 1], a[i + 2, k + 2], a[i + 2, k + 3]
            a30, a31, a32, a33 = a[i + 3, k], a[i + 3, k + 1], a[i + 3, k + 2], a[i + 3, k + 3]
            for j in range(width):
                w0, w1, w2, w3 = w[k, j], w[k + 1, j], w[k + 2, j], w[k + 3, j]
                out[i, j] = out[i, j] + a00 * w0 + a01 * w1 + a02 * w2 + a03 * w3
                out[i + 1, j] = out[i + 1, j] + a10 * w0 + a11 * w1 + a12 * w2 + a13 * w3
                out[i + 2, j] = out[i + 2, j] + a20 * w0 + a21 * w1 + a22 * w2 + a23 * w3
                out[i + 3, j] = out[i + 3, j] + a30 * w0 + a31 * w1 + a32 * w2 + a33 * w3
        for k in range(deep, depth):
            a00, a10, a20, a30 = a[i, k], a[i + 1, k], a[i + 2, k], a[i + 3, k]
            for j in range(width):
                out[i, j] += a00 * w[k, j]
                out[i + 1, j] += a10 * w[k, j]
                out[i + 2, j] += a20 * w[k, j]
                out[i + 3, j] += a30 * w[k, j]
    for i in range(fours, n):
        add_row_product(out[i], a[i], w)


@loop
def add_row_product(out, a, w):
    """The same of one row: a ``[K]``."""
    deep = len(a) - len(a) % 4
    for k in range(0, deep, 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        for j in range(len(out)):
            w0, w1, w2, w3 = w[k, j], w[k + 1, j], w[k + 2, j], w[k + 3, j]
            out[j] = out[j] + a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
    for k in range(deep, len(a)):
        for j in range(len(out)):
            out[j] += a[k] * w[k, j]


@loop
def gru_step(sums, shares, state):
    """Open the gates in `sums` by h's `shares`, ``[n, 3H]`` each, and advance `state`."""
    size = state.shape[1]
    for i in range(len(state)):
        gates, q, h = sums[i], shares[i], state[i]
        for j in range(2 * size):
            gates[j] = logistic(gates[j] + q[j])
        r, z, n, inner = gates[:size], gates[size : 2 * size], gates[2 * size :], q[2 * size :]
        for j in range(size):
            n[j] = tanh(n[j] + r[j] * inner[j])
        # (1 - z) n + z h with one product less
        for j in range(size):
            h[j] = n[j] + z[j] * (h[j] - n[j])


@loop
def lstm_step(sums, state, cells):
    """Open the gates in `sums`, ``[n, 4H]``, and advance `state` and `cells`."""
    size = state.shape[1]
    for row in range(len(state)):
        gates, h, c = sums[row], state[row], cells[row]
        i, f, g = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
        o = gates[3 * size :]
        for j in range(2 * size):
            gates[j] = logistic(gates[j])
        for j in range(size):
            g[j] = tanh(g[j])
        for j in range(size):
            o[j] = logistic(o[j])
        for j in range(size):
            c[j] = f[j] * c[j] + i[j] * g[j]
        for j in range(size):
            h[j] = o[j] * tanh(c[j])


@loop
def step(lstm, inputs, w_ih, w_hh, bias, b_hn, sums, shares, state, cells):
    """Advance `state` and `cells` ``[n, H]`` by one step; `sums` and `shares` are memory."""
    size = state.shape[1]
    for i in range(len(state)):
        sums[i] = bias
    add_product(sums, inputs, w_ih)
    if lstm:
        add_product(sums, state, w_hh)
        lstm_step(sums, state, cells)
        return
    for i in range(len(state)):
        shares[i, : 2 * size] = 0
        shares[i, 2 * size :] = b_hn
    add_product(shares, state, w_hh)
    gru_step(sums, shares, state)


@loop
def read(rows, firsts, chunk, time, to):
    """Copy the row of each column at a time."""
    for i in range(len(to)):
        to[i] = rows[firsts[chunk[i]] + time]


@loop
def write(values, firsts, chunk, time, rows):
    """Copy the values of each column to its row at a time, from the left."""
    for i in range(len(values)):
        rows[firsts[chunk[i]] + time, : values.shape[1]] = values[i]


@loop
def forward(lstm, plan, x, w_ih, w_hh, bias, b_hn, starts, outs, kept):
    """Write the states after every row to `outs`, the open gates and h's share of n to `kept`.

    `plan` has the first row and the length of each segment, and the segments from the longest to
    the shortest. w_ih ``[I, G * H]`` and w_hh ``[H, G * H]`` are transposed. `kept` ``[M, 4H]`` may
    be empty. A GRU has no cells: those of `starts` and `outs` are empty.
    """
    (firsts, lengths, columns), size = plan, w_hh.shape[0]
    most, width = min(COLUMNS, len(columns)), len(bias)
    sums, shares = np.empty((most, width), x.dtype), np.empty((most, width), x.dtype)
    state, cells = np.empty((most, size), x.dtype), np.empty((most, size), x.dtype)
    inputs = np.empty((most, x.shape[1]), x.dtype)
    for begin in range(0, len(columns), COLUMNS):
        chunk = columns[begin : begin + COLUMNS]
        n = len(chunk)
        for i in range(n):
            state[i] = starts[0][chunk[i]]
            if lstm:
                cells[i] = starts[1][chunk[i]]
        for time in range(lengths[chunk[0]]):
            # columns that ended are the last ones, so that the others stay the first n rows
            while lengths[chunk[n - 1]] <= time:
                n -= 1
            read(x, firsts, chunk, time, inputs[:n])
            step(
                lstm, inputs[:n], w_ih, w_hh, bias, b_hn, sums[:n], shares[:n], state[:n], cells[:n]
            )
            write(state[:n], firsts, chunk, time, outs[0])
            if lstm:
                write(cells[:n], firsts, chunk, time, outs[1])
            if len(kept):
                write(sums[:n], firsts, chunk, time, kept)
                if not lstm:
                    write(shares[:n, 2 * size :], firsts, chunk, time, kept[:, width:])


@loop
def gru_slopes(gates, before, dh, d_in, d_share):
    """Gradients of one row's gates, by the inputs and by h, from that of h after the row.

    `dh` becomes the gradient of h before, without that through w_hh.
    """
    size = len(dh)
    r, z, n = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
    inner = gates[3 * size :]  # h's share of n before r scales it
    # of n first: the slopes of r read it
    for j in range(size):
        d_in[2 * size + j] = dh[j] * (ONE - z[j]) * (ONE - n[j] * n[j])
    for j in range(size):
        d_in[size + j] = dh[j] * (before[j] - n[j]) * z[j] * (ONE - z[j])
    for j in range(size):
        d_in[j] = d_in[2 * size + j] * inner[j] * r[j] * (ONE - r[j])
    for j in range(size):
        dh[j] *= z[j]
    for j in range(2 * size):
        d_share[j] = d_in[j]
    for j in range(size):
        d_share[2 * size + j] = d_in[2 * size + j] * r[j]


@loop
def lstm_slopes(gates, before, after, dh, dc, d_in):
    """Gradients of one row's gates, from those of h and c after the row; c is `before`, `after`.

    `dh` and `dc` become the gradients before, without that through w_hh.
    """
    size = len(dh)
    i, f, g = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
    o = gates[3 * size :]
    for j in range(size):
        tau = tanh(after[j])
        d_in[3 * size + j] = dh[j] * tau * o[j] * (ONE - o[j])
        dc[j] += dh[j] * o[j] * (ONE - tau * tau)
    for j in range(size):
        d_in[j] = dc[j] * g[j] * i[j] * (ONE - i[j])
    for j in range(size):
        d_in[size + j] = dc[j] * before[j] * f[j] * (ONE - f[j])
    for j in range(size):
        d_in[2 * size + j] = dc[j] * i[j] * (ONE - g[j] * g[j])
    for j in range(size):
        dc[j] *= f[j]
        dh[j] = 0


@loop
def add(total, more):
    """Add one row to another."""
    for j in range(len(total)):
        total[j] += more[j]


@loop
def slopes(lstm, place, starts, outs, kept, d_outs, before, dh, dc, d_in, d_share):
    """Gradients of the gates of each column at a time, ``[n, ...]``; `before` becomes h before.

    `place` has the columns, their first rows and the time. dh and dc are those after the step,
    without those of the outputs.
    """
    chunk, firsts, time = place
    for i in range(len(dh)):
        row = firsts[chunk[i]] + time
        before[i] = outs[0][row - 1] if time else starts[0][chunk[i]]
        if len(d_outs[0]):
            add(dh[i], d_outs[0][row])
        if lstm:
            if len(d_outs[1]):
                add(dc[i], d_outs[1][row])
            cell = outs[1][row - 1] if time else starts[1][chunk[i]]
            lstm_slopes(kept[row], cell, outs[1][row], dh[i], dc[i], d_in[i])
        else:
            gru_slopes(kept[row], before[i], dh[i], d_in[i], d_share[i])


@loop
def add_sums(d_in, d_share, inputs, before, sums):
    """Add what some rows contribute to the gradients of w_ih, w_hh, bias and b_hn."""
    d_w_ih, d_w_hh, d_bias, d_b_hn = sums
    if len(d_w_ih):
        add_product(d_w_ih, d_in.T, inputs)
    if len(d_w_hh):
        add_product(d_w_hh, d_share.T, before)
    for i in range(len(d_in)):
        if len(d_bias):
            add(d_bias, d_in[i])
        if len(d_b_hn):
            add(d_b_hn, d_share[i, 2 * len(d_b_hn) :])


@loop
def backward(lstm, plan, x, w_ih, w_hh, starts, outs, kept, d_outs, d_x, sums, d_starts):
    """Write the gradients of x and of the states at starts, and add up those of parameters.

    w_ih ``[G * H, I]`` and w_hh ``[G * H, H]``. `sums` are for w_ih, w_hh, bias and b_hn. Gradients
    that are not wanted, and those of `d_outs` that are not there, are empty.
    """
    firsts, lengths, columns = plan
    (width, size), most = w_hh.shape, min(COLUMNS, len(columns))
    d_ins, d_shares = np.empty((most, width), x.dtype), np.empty((most, width), x.dtype)
    before, inputs = np.empty((most, size), x.dtype), np.empty((most, x.shape[1]), x.dtype)
    dh, dc = np.empty((most, size), x.dtype), np.empty((most, size), x.dtype)
    for begin in range(0, len(columns), COLUMNS):
        chunk, n = columns[begin : begin + COLUMNS], 0
        dh[: len(chunk)] = 0
        dc[: len(chunk)] = 0
        for time in range(lengths[chunk[0]] - 1, -1, -1):
            # columns enter at their last step, the longest ones first
            while n < len(chunk) and lengths[chunk[n]] > time:
                n += 1
            place, d_in = (chunk, firsts, time), d_ins[:n]
            # the gates of an LSTM add both products, so that one gradient serves both
            d_share = d_in if lstm else d_shares[:n]
            slopes(
                lstm, place, starts, outs, kept, d_outs, before[:n], dh[:n], dc[:n], d_in, d_share
            )
            add_product(dh[:n], d_share, w_hh)  # now of h before the step
            read(x, firsts, chunk, time, inputs[:n])
            add_sums(d_in, d_share, inputs[:n], before[:n], sums)
            if len(d_x):
                inputs[:n] = 0
                add_product(inputs[:n], d_in, w_ih)
                write(inputs[:n], firsts, chunk, time, d_x)
        for i in range(len(chunk)):
            d_starts[0][chunk[i]] = dh[i]
            if lstm:
                d_starts[1][chunk[i]] = dc[i]
