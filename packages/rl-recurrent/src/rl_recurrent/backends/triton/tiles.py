"""Device functions of the recurrent kernels: tile of segments, loads and stores, activations.

Only primitives of Triton are used, none of its library functions: those are compiled when Triton is
imported, so that they could not be interpreted in a process that imported it earlier.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a kernel takes its tensors one by one, as untyped pointers

import triton
import triton.language as tl


@triton.jit
def tile_of_segments(order, first, length, num_segments, BLOCK_S: tl.constexpr):
    """Number, first row and length [S] of this program's segments, and the longest length."""
    slot = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    known = slot < num_segments
    segment = tl.load(order + slot, mask=known, other=0)
    start = tl.load(first + segment)
    steps = tl.where(known, tl.load(length + segment), 0)  # an empty slot has no step
    # segments are sorted by length: the first of a tile is its longest
    longest = tl.load(length + tl.load(order + tl.program_id(0) * BLOCK_S))
    return segment, start, steps, longest.to(tl.int32)


@triton.jit
def state_before(initial, state, segment, start, row, column, live, H):
    """State [S, K] that a row starts from: its predecessor's, or the segment's initial state."""
    at_start = (row == start)[:, None]
    stored = tl.load(
        initial + segment[:, None] * H + column[None, :], mask=live & at_start, other=0.0
    )
    carried = tl.load(
        state + (row - 1)[:, None] * H + column[None, :], mask=live & ~at_start, other=0.0
    )
    return stored + carried


@triton.jit
def load_four(rows, live, H):
    """Load four blocks [S, J], H columns apart in rows of 4H, as float32."""
    first = tl.load(rows, mask=live, other=0.0).to(tl.float32)
    second = tl.load(rows + H, mask=live, other=0.0).to(tl.float32)
    third = tl.load(rows + 2 * H, mask=live, other=0.0).to(tl.float32)
    fourth = tl.load(rows + 3 * H, mask=live, other=0.0).to(tl.float32)
    return first, second, third, fourth


@triton.jit
def store_four(rows, live, H, first, second, third, fourth):
    """Store four blocks [S, J], H columns apart in rows of 4H."""
    tl.store(rows, first, mask=live)
    tl.store(rows + H, second, mask=live)
    tl.store(rows + 2 * H, third, mask=live)
    tl.store(rows + 3 * H, fourth, mask=live)


@triton.jit
def operand(x, dtype, PRECISION: tl.constexpr):
    """Operand of a product, in its dtype; for tf32 rounded to nearest, where the product cuts."""
    x = x.to(dtype)
    if PRECISION == "tf32":
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # NaN stays NaN
    return x


@triton.jit
def sigmoid(x):
    """Logistic function that never overflows: 1 / (1 + exp(-x))."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """Hyperbolic tangent that never overflows; the interpreter has none of its own."""
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0, y, -y)
