"""The kernels of both cells against an independent loop, interpreted or compiled."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from rl_layout import Segments
from rl_recurrent.backends.triton.launch import LaunchPlan
from rl_recurrent.backends.triton.layer import planned_scan, scan
from rl_recurrent.cells import CELLS


def lstm_loop(gates, w_hh, h0, c0, lengths):
    """Independent plain recurrence, one step of all segments that last so long at a time."""

    def step(x, states):
        h, c = states
        i, f, g, o = (x + h @ w_hh.T).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    return walked(step, gates, (h0, c0), lengths)


def gru_loop(gates, w_hh, b_hn, h0, lengths):
    """The same of a GRU."""

    def step(x, states):
        (h,) = states
        (x_r, x_z, x_n), (q_r, q_z, q_n) = x.chunk(3, -1), (h @ w_hh.T).chunk(3, -1)
        z = (x_z + q_z).sigmoid()
        n = (x_n + (x_r + q_r).sigmoid() * (q_n + b_hn)).tanh()
        return ((1 - z) * n + z * h,)

    return walked(step, gates, (h0,), lengths)


def walked(step, gates, states, lengths):
    """States of every row; a segment that is over keeps its own."""
    starts = torch.tensor([sum(lengths[:s]) for s in range(len(lengths))], device=gates.device)
    counts = torch.tensor(lengths, device=gates.device)
    rows, found = [], []
    for t in range(max(lengths)):
        on = counts > t
        row = starts + t * on
        after = step(gates[row], states)
        states = tuple(torch.where(on[:, None], a, b) for a, b in zip(after, states, strict=True))
        rows.append(row[on])
        found.append([state[on] for state in states])
    back = torch.cat(rows).argsort()
    return tuple(torch.cat(each)[back] for each in zip(*found, strict=True))


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell under test: its loop, and where its tensors differ from the other's."""

    name: str
    loop: Callable
    num_gates: int
    has_bias: bool  # one that the reset gate scales
    num_states: int

    def by(self, plan, tensors, segments, **options):
        """The states of every row, by a given plan."""
        return planned_scan(CELLS[self.name], self.inputs(tensors), segments, plan, **options)

    def scan(self, *tensors, segments, **options):
        """The states of every row, by the checked function."""
        return scan(CELLS[self.name], self.inputs(tensors), segments, **options)

    def inputs(self, tensors):
        """Gates, weights, the bias or None, and the states."""
        gates, w_hh, *rest = tensors
        return [gates, w_hh, *([] if self.has_bias else [None]), *rest]

    def drawn(self, lengths, size, device="cpu", seed=0):
        """Gates, weights at torch's initial scale, a bias if there is one, and initial states."""
        generator = torch.Generator().manual_seed(seed)
        rows, count, width = sum(lengths), len(lengths), self.num_gates * size
        uniform = torch.rand(width, size, generator=generator) * 2 - 1
        shapes = [(size,)] * self.has_bias + [(count, size)] * self.num_states
        tensors = [
            torch.randn(rows, width, generator=generator),
            uniform * size**-0.5,
            *(torch.randn(shape, generator=generator) / 2 for shape in shapes),
        ]
        return [tensor.to(device).requires_grad_() for tensor in tensors]


LSTM = Cell("lstm", lstm_loop, 4, has_bias=False, num_states=2)
GRU = Cell("gru", gru_loop, 3, has_bias=True, num_states=1)
each_cell = pytest.mark.parametrize("cell", [LSTM, GRU], ids=lambda cell: cell.name)


def plan_of(regime, size, block_s=16, precision="ieee"):
    block_h = 16 if size <= 16 else 32 if size <= 32 else 64
    block_j = block_h if regime == "resident" else 16
    return LaunchPlan(regime, torch.float32, precision, block_s, block_j, 32, 4, 1)


def segments_of(lengths, device="cpu"):
    return Segments.from_lengths(torch.tensor(lengths, device=device))


def assert_like_the_loop(cell, run, inputs, lengths, bounds=(2e-6, 1e-5)):
    """Outputs within an absolute bound, gradients within a relative one, of float64."""
    bound, relative = bounds
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    made, expected = run(*inputs), cell.loop(*wide, lengths)
    generator = torch.Generator().manual_seed(1)
    seen = [
        torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device)
        for o in expected
    ]
    for ours, theirs in zip(made, expected, strict=True):
        assert (ours - theirs).abs().max() <= bound
    found = torch.autograd.grad(made, inputs, [each.to(made[0].dtype) for each in seen])
    for ours, theirs in zip(found, torch.autograd.grad(expected, wide, seen), strict=True):
        assert (ours - theirs).norm() <= relative * theirs.norm()


@each_cell
@pytest.mark.parametrize(
    ("regime", "size", "lengths", "save"),
    [
        ("resident", 16, [3, 1, 7, 2], "state"),
        ("resident", 33, [2, 1, 4], "gates"),
        ("resident", 24, [1] * 9, "state"),
        ("walk", 16, [6], "gates"),
        ("walk", 33, [2, 1, 3], "state"),
        ("steps", 24, [3, 1, 4], "gates"),
        ("steps", 33, [1, 1, 1, 1, 1], "state"),
    ],
)
def test_outputs_and_gradients_equal_the_float64_loop(cell, regime, size, lengths, save, device):
    segments, plan = segments_of(lengths, device), plan_of(regime, size)

    def run(*tensors):
        return cell.by(plan, tensors, segments, save=save)

    assert_like_the_loop(cell, run, cell.drawn(lengths, size, device), lengths)


@pytest.mark.parametrize(
    ("cell", "regime"), [(LSTM, "resident"), (LSTM, "steps"), (GRU, "resident"), (GRU, "walk")]
)
def test_long_segment_next_to_a_short_one_equals_the_loop(cell, regime, device):
    lengths, size = [2, 41], 5
    segments = segments_of(lengths, device)

    def run(*tensors):
        return cell.by(plan_of(regime, size), tensors, segments, save="gates")

    assert_like_the_loop(cell, run, cell.drawn(lengths, size, device), lengths)


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled products need 16 segments a tile")
@each_cell
@pytest.mark.parametrize("regime", ["resident", "walk", "steps"])
def test_tiles_of_very_different_lengths_equal_the_loop(cell, regime, device):
    lengths = [1, 12, 2, 1, 5]  # two a tile, longest first: 12 5, 2 1, 1 and an empty slot
    segments = segments_of(lengths)

    def run(*tensors):
        return cell.by(plan_of(regime, 16, block_s=2), tensors, segments)

    assert_like_the_loop(cell, run, cell.drawn(lengths, 16), lengths)


@each_cell
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_scan_chooses_a_plan(cell, precision, device):
    lengths = [2, 5, 1]

    def run(*tensors):
        segments = segments_of(lengths, device)
        return cell.scan(*tensors, segments=segments, precision=precision)

    bounds = BOUNDS[precision if device.type == "cuda" else "ieee"]
    assert_like_the_loop(cell, run, cell.drawn(lengths, 20, device), lengths, bounds)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device may multiply in tf32")
@each_cell
def test_auto_precision_is_float32_without_tf32(cell):
    inputs, segments = cell.drawn([2, 1], 16), segments_of([2, 1])
    found = (cell.scan(*inputs, segments=segments, precision=p)[0] for p in ("auto", "ieee"))
    assert torch.equal(*found)


USED = [(LSTM, 0), (LSTM, 1), (GRU, 0)]


@pytest.mark.parametrize("regime", ["resident", "walk"])
@pytest.mark.parametrize(("cell", "used"), USED, ids=["lstm-h", "lstm-c", "gru-h"])
def test_gradients_of_final_states_alone(cell, used, regime, device):
    lengths = [3, 1, 2]
    inputs, segments = cell.drawn(lengths, 16, device), segments_of(lengths, device)
    final = cell.by(plan_of(regime, 16), inputs, segments)[used][segments.lasts]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = cell.loop(*wide, lengths)[used][segments.lasts]
    torch.testing.assert_close(final.double(), expected, atol=2e-6, rtol=0)
    ours = torch.autograd.grad(final.square().sum(), inputs)
    theirs = torch.autograd.grad(expected.square().sum(), wide)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-6, rtol=1e-5)


@each_cell
def test_gates_are_saved_or_recomputed_as_requested(cell, device):
    lengths, size = [3, 1, 2], 16
    segments, width = segments_of(lengths, device), cell.num_gates * size
    _, *given = cell.drawn(lengths, size, device)
    x = torch.randn(6, 5, device=device)
    w_ih = torch.randn(width, 5, device=device, requires_grad=True)
    bias = torch.randn(width, device=device)
    kept = []

    def gradient(projection, save="state"):
        gates = torch.nn.functional.linear(x, w_ih, bias)
        options = {"precision": "ieee", "projection": projection, "save": save}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(tuple(t.shape)) or t, lambda t: t
        ):
            hidden = cell.scan(gates, *given, segments=segments, **options)[0]
        return torch.autograd.grad(hidden.square().sum(), [w_ih, *given])

    plain = gradient(None)
    assert (6, width) in kept
    kept.clear()
    again = gradient((x, w_ih, bias))
    assert not {(6, width), (6, 4 * size)} & set(kept)
    stored = gradient((x, w_ih, bias), save="gates")
    assert (6, 4 * size) in kept
    for a, *others in zip(plain, again, stored, strict=True):
        for b in others:
            torch.testing.assert_close(a, b)


@each_cell
@pytest.mark.parametrize("regime", ["resident", "walk", "steps"])
def test_nan_stays_in_its_segment(cell, regime, device):
    lengths, others = [2, 3, 1], [0, 1, 5]
    plan, segments = plan_of(regime, 16, precision="tf32"), segments_of(lengths, device)
    inputs = cell.drawn(lengths, 16, device)
    clean = cell.by(plan, inputs, segments)
    clean_gradient = torch.autograd.grad(clean[0][others].sum(), inputs[0])[0]
    inputs[0].data[3] = torch.nan
    spoilt = cell.by(plan, inputs, segments)
    assert spoilt[0][3:5].isnan().all()
    for one, other in zip(spoilt, clean, strict=True):
        assert torch.equal(one[others], other[others])
    spoilt_gradient = torch.autograd.grad(spoilt[0][others].sum(), inputs[0])[0]
    assert torch.equal(spoilt_gradient[others], clean_gradient[others])


@each_cell
def test_huge_gates_saturate(cell, device):
    lengths = [3, 2]
    inputs = cell.drawn(lengths, 16, device)
    inputs[0].data *= 1e4
    made = cell.by(plan_of("resident", 16), inputs, segments_of(lengths, device))
    expected = cell.loop(*(tensor.detach().double() for tensor in inputs), lengths)
    for ours, theirs in zip(made, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-6, rtol=1e-6)
    assert torch.autograd.grad(made[0].sum(), inputs[0])[0].isfinite().all()


@each_cell
@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_strided_inputs_equal_contiguous_ones(cell, regime, device):
    lengths = [2, 1]
    plain = cell.drawn(lengths, 16, device)
    strided = [t.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_() for t in plain]
    segments, plan = segments_of(lengths, device), plan_of(regime, 16)
    first, second = cell.by(plan, plain, segments), cell.by(plan, strided, segments)
    assert torch.equal(first[0], second[0])
    seen = [torch.randn(16, 3, device=device).T for _ in first]
    ours = torch.autograd.grad(second, strided, seen)
    theirs = torch.autograd.grad(first, plain, [each.contiguous() for each in seen])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)  # the products over all rows may add in another order


@each_cell
def test_scan_skips_padding_rows(cell, device):
    ids = torch.tensor([4, 4, -1, -1, 7, -1, 9], device=device)
    inputs, plan = cell.drawn([2, 1, 1], 16, device), plan_of("resident", 16)
    made = cell.by(plan, inputs, Segments.from_ids(ids))
    expected = cell.by(plan, inputs, segments_of([2, 1, 1], device))
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def with_one_product(cell, device):
    """Zeros, but for one state 1 + 3/4 ulp of tf32, and one weight 1 towards g or n."""
    gates, w_hh, *rest = (torch.zeros_like(t) for t in cell.drawn([1], 16, device))
    h0 = rest[1 if cell.has_bias else 0]
    w_hh[32, 1], h0[0, 1] = 1.0, 1 + 0.75 * 2.0**-10  # its first column reads the second
    return gates, w_hh, *rest


@each_cell
@pytest.mark.parametrize("regime", ["resident", "walk"])
@pytest.mark.parametrize(("precision", "read"), [("tf32", 1.0), ("tf32x3", 0.75)])
def test_states_in_products_are_rounded_by_the_precision(cell, regime, precision, read, device):
    plan, inputs = plan_of(regime, 16, precision=precision), with_one_product(cell, device)
    last = cell.by(plan, inputs, segments_of([1], device))[-1]
    new = 1 + read * 2.0**-10  # what the product is taken of
    expected = torch.tensor(new if cell is LSTM else new / 2).tanh() / 2
    assert abs(last[0, 0].cpu() - expected) < 1e-7


@each_cell
@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_rounding_keeps_nan(cell, regime, device):
    inputs = [tensor.detach() for tensor in cell.drawn([1], 16, device)]
    h0 = inputs[-cell.num_states]
    h0.view(torch.int32)[0, 3] = 0x7FFFFFFF  # every bit set: rounding up would carry into the sign
    plan = plan_of(regime, 16, precision="tf32")
    assert cell.by(plan, inputs, segments_of([1], device))[0].isnan().all()


@each_cell
def test_scan_without_gradient_leaves_its_inputs_unchanged(cell, device):
    lengths = [2, 3]
    inputs = [tensor.detach() for tensor in cell.drawn(lengths, 16, device)]
    copies = [tensor.clone() for tensor in inputs]
    made = cell.scan(*inputs, segments=segments_of(lengths, device))
    assert not any(state.requires_grad for state in made)
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


@each_cell
def test_frozen_weights_get_no_gradient(cell, device):
    gates, w_hh, *rest = cell.drawn([2, 1], 16, device)
    w_hh.requires_grad_(False)
    cell.scan(gates, w_hh, *rest, segments=segments_of([2, 1], device))[0].sum().backward()
    assert all(tensor.grad is not None for tensor in (gates, *rest))
    assert w_hh.grad is None


@each_cell
def test_scan_of_no_rows_is_empty(cell, device):
    gates, w_hh, *rest = cell.drawn([1], 16, device)
    segments = Segments.from_ids(torch.tensor([-1, -1], device=device))
    states = [state[:0] for state in rest[-cell.num_states :]]
    tensors = gates[:0], w_hh, *rest[: -cell.num_states], *states
    made = cell.by(plan_of("walk", 16), tensors, segments)
    assert [tuple(state.shape) for state in made] == [(0, 16)] * cell.num_states
    assert not torch.autograd.grad(made[0].sum(), w_hh)[0].any()


# three products leave an error of some 2^-21 in each operand, float32 has 2^-24
BOUNDS = {
    "ieee": (2e-6, 1e-5),
    "tf32x3": (4e-6, 2e-5),
    "tf32": (5e-4, 1e-3),
    "bf16": (5e-3, 5e-3),
}


def ragged(count, longest):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(1, longest + 1, (count,), generator=generator).tolist()


@pytest.mark.gpu
@each_cell
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("size", [16, 33, 64, 96, 128, 200, 256, 300, 512])
@pytest.mark.parametrize("save", ["state", "gates"])
def test_full_sizes_stay_within_error_bounds(cell, size, precision, save):
    lengths = ragged(70, 256)
    segments = segments_of(lengths, "cuda")

    def run(*tensors):
        return cell.scan(*tensors, segments=segments, save=save, precision=precision)

    inputs = cell.drawn(lengths, size, "cuda")
    assert_like_the_loop(cell, run, inputs, lengths, BOUNDS[precision])


@pytest.mark.gpu
@each_cell
@pytest.mark.parametrize("size", [64, 128, 256, 320])
def test_second_run_gives_the_same_bits(cell, size):
    lengths = ragged(3000, 40)  # above 2112 segments a program takes 32
    segments, inputs = segments_of(lengths, "cuda"), cell.drawn(lengths, size, "cuda")

    def run():
        outputs = cell.scan(*inputs, segments=segments)
        return [*outputs, *torch.autograd.grad(sum(o.square().sum() for o in outputs), inputs)]

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.gpu
@each_cell
@pytest.mark.parametrize("size", [64, 128, 320])
def test_bfloat16_tensors_stay_within_error_bounds(cell, size):
    lengths = ragged(70, 128)
    segments = segments_of(lengths, "cuda")
    narrow = [t.detach().bfloat16().requires_grad_() for t in cell.drawn(lengths, size, "cuda")]
    made = cell.scan(*narrow, segments=segments)
    assert all(state.dtype == torch.bfloat16 for state in made)
    expected = cell.loop(*(t.detach().double() for t in narrow), lengths)
    # rounding the output itself adds 2^-9 of a state within [-1, 1]
    assert (made[0].double() - expected[0]).abs().max() < 5e-3 + 2**-9
    made[0].sum().backward()
    assert all(t.grad.dtype == torch.bfloat16 and t.grad.isfinite().all() for t in narrow)
