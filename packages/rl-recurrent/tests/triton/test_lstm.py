import dataclasses

import pytest
import torch

from rl_layout import Segments
from rl_recurrent.triton.lstm import lstm_scan, scan_by
from rl_recurrent.triton.plan import Plan


def loop(gates, w_hh, h0, c0, lengths):
    """Independent plain recurrence, one step of all segments that last so long at a time."""
    starts = torch.tensor([sum(lengths[:s]) for s in range(len(lengths))], device=gates.device)
    counts = torch.tensor(lengths, device=gates.device)
    h, c, rows, hidden, cell = h0, c0, [], [], []
    for t in range(max(lengths)):
        on = (counts > t)[:, None]
        row = starts + t * (counts > t)
        i, f, g, o = (gates[row] + h @ w_hh.T).chunk(4, -1)
        c = torch.where(on, f.sigmoid() * c + i.sigmoid() * g.tanh(), c)
        h = torch.where(on, o.sigmoid() * c.tanh(), h)
        rows.append(row[on[:, 0]])
        hidden.append(h[on[:, 0]])
        cell.append(c[on[:, 0]])
    back = torch.cat(rows).argsort()
    return torch.cat(hidden)[back], torch.cat(cell)[back]


def drawn(lengths, size, device="cpu", seed=0):
    """Gates, weights at torch's initial scale, and initial states."""
    generator = torch.Generator().manual_seed(seed)
    rows, count, scale = sum(lengths), len(lengths), size**-0.5
    uniform = torch.rand(4 * size, size, generator=generator) * 2 - 1
    tensors = (
        torch.randn(rows, 4 * size, generator=generator),
        uniform * scale,
        torch.randn(count, size, generator=generator) / 2,
        torch.randn(count, size, generator=generator) / 2,
    )
    return [tensor.to(device).requires_grad_() for tensor in tensors]


def plan_of(regime, size, block_s=16):
    block_h = 16 if size <= 16 else 32 if size <= 32 else 64
    block_j = block_h if regime == "resident" else 16
    return Plan(regime, torch.float32, "ieee", block_s, block_j, 32, 4, 1)


def segments_of(lengths, device="cpu"):
    return Segments.from_lengths(torch.tensor(lengths, device=device))


def gradients(outputs, inputs, cotangents):
    return torch.autograd.grad(outputs, inputs, [c.to(outputs[0].dtype) for c in cotangents])


def assert_like_the_loop(run, inputs, lengths, bound=2e-6, relative=1e-5):
    """Outputs within an absolute bound, gradients within a relative one, of float64."""
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = loop(*wide, lengths)
    made = run(*inputs)
    generator = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device)
        for o in expected
    ]
    for ours, theirs in zip(made, expected, strict=True):
        assert (ours - theirs).abs().max() <= bound
    ours_and_theirs = zip(
        gradients(made, inputs, cotangents), gradients(expected, wide, cotangents), strict=True
    )
    for ours, theirs in ours_and_theirs:
        assert (ours - theirs).norm() <= relative * theirs.norm()


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
def test_outputs_and_gradients_equal_the_float64_loop(regime, size, lengths, save, device):
    segments = segments_of(lengths, device)
    plan = plan_of(regime, size)

    def run(*tensors):
        return scan_by(plan, tensors, segments, save=save)

    assert_like_the_loop(run, drawn(lengths, size, device), lengths)


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled products need 16 segments a tile")
@pytest.mark.parametrize("regime", ["resident", "walk", "steps"])
def test_tiles_of_very_different_lengths(regime, device):
    lengths = [1, 12, 2, 1, 5]  # two a tile, longest first: 12 5, 2 1, 1 and an empty slot
    segments = segments_of(lengths)

    def run(*tensors):
        return scan_by(plan_of(regime, 16, block_s=2), tensors, segments)

    assert_like_the_loop(run, drawn(lengths, 16), lengths)


def test_the_public_function_chooses_a_plan(device):
    lengths = [2, 5, 1]

    def run(*tensors):
        return lstm_scan(*tensors, segments_of(lengths, device), precision="ieee")

    assert_like_the_loop(run, drawn(lengths, 20, device), lengths)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device may multiply in tf32")
def test_auto_is_full_float32_where_there_is_no_tf32():
    inputs, segments = drawn([2, 1], 16), segments_of([2, 1])
    assert torch.equal(
        lstm_scan(*inputs, segments)[0], lstm_scan(*inputs, segments, precision="ieee")[0]
    )


@pytest.mark.parametrize("regime", ["resident", "walk"])
@pytest.mark.parametrize("used", [0, 1])
def test_gradients_of_final_states_alone(regime, used, device):
    lengths = [3, 1, 2]
    inputs = drawn(lengths, 16, device)
    segments = segments_of(lengths, device)
    final = scan_by(plan_of(regime, 16), tuple(inputs), segments)[used][segments.lasts]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = loop(*wide, lengths)[used][segments.lasts]
    torch.testing.assert_close(final.double(), expected, atol=2e-6, rtol=0)
    ours = torch.autograd.grad(final.square().sum(), inputs)
    theirs = torch.autograd.grad(expected.square().sum(), wide)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-6, rtol=1e-5)


def test_a_projection_is_made_again_and_no_gates_are_kept(device):
    lengths, size = [3, 1, 2], 16
    segments = segments_of(lengths, device)
    _, w_hh, h0, c0 = drawn(lengths, size, device)
    x = torch.randn(6, 5, device=device)
    w_ih = torch.randn(4 * size, 5, device=device, requires_grad=True)
    bias = torch.randn(4 * size, device=device)
    kept = []

    def gradient(projection):
        gates = torch.nn.functional.linear(x, w_ih, bias)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(tuple(t.shape)) or t, lambda t: t
        ):
            hidden, _ = lstm_scan(
                gates, w_hh, h0, c0, segments, precision="ieee", projection=projection
            )
        return torch.autograd.grad(hidden.square().sum(), [w_ih, w_hh, h0, c0])

    plain = gradient(None)
    assert (6, 4 * size) in kept
    kept.clear()
    again = gradient((x, w_ih, bias))
    assert (6, 4 * size) not in kept
    for a, b in zip(plain, again, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("regime", ["resident", "walk", "steps"])
def test_a_nan_in_one_segment_changes_no_other(regime, device):
    lengths = [2, 3, 1]
    plan = dataclasses.replace(plan_of(regime, 16), input_precision="tf32")
    segments = segments_of(lengths, device)
    inputs = drawn(lengths, 16, device)
    clean = scan_by(plan, tuple(inputs), segments)
    clean_gradient = torch.autograd.grad(clean[0][:2].sum() + clean[0][5:].sum(), inputs[0])[0]
    inputs[0].data[3] = torch.nan
    spoilt = scan_by(plan, tuple(inputs), segments)
    others = [0, 1, 5]
    assert spoilt[0][3:5].isnan().all()
    assert torch.equal(spoilt[0][others], clean[0][others])
    assert torch.equal(spoilt[1][others], clean[1][others])
    spoilt_gradient = torch.autograd.grad(spoilt[0][others].sum(), inputs[0])[0]
    assert torch.equal(spoilt_gradient[others], clean_gradient[others])


def test_huge_gates_saturate(device):
    lengths = [3, 2]
    inputs = drawn(lengths, 16, device)
    inputs[0].data *= 1e4
    hidden, cell = scan_by(plan_of("resident", 16), tuple(inputs), segments_of(lengths, device))
    expected = loop(*(tensor.detach().double() for tensor in inputs), lengths)
    torch.testing.assert_close(hidden.double(), expected[0], atol=2e-6, rtol=0)
    torch.testing.assert_close(cell.double(), expected[1], atol=2e-6, rtol=1e-6)
    assert torch.autograd.grad(hidden.sum(), inputs[0])[0].isfinite().all()


@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_strided_inputs(regime, device):
    lengths = [2, 1]
    plain = drawn(lengths, 16, device)
    strided = [t.detach().T.contiguous().T.requires_grad_() for t in plain]
    segments, plan = segments_of(lengths, device), plan_of(regime, 16)
    first, second = scan_by(plan, tuple(plain), segments), scan_by(plan, tuple(strided), segments)
    assert torch.equal(first[0], second[0])
    cotangents = [torch.randn(16, 3, device=device).T for _ in range(2)]
    ours = torch.autograd.grad(second, strided, cotangents)
    theirs = torch.autograd.grad(first, plain, [c.contiguous() for c in cotangents])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)  # the products over all rows may add in another order


def test_padding_rows_of_the_batch_are_no_rows_of_the_scan(device):
    ids = torch.tensor([4, 4, -1, -1, 7, -1, 9], device=device)
    segments = Segments.from_ids(ids)
    inputs = drawn([2, 1, 1], 16, device)
    made = scan_by(plan_of("resident", 16), tuple(inputs), segments)
    expected = scan_by(plan_of("resident", 16), tuple(inputs), segments_of([2, 1, 1], device))
    assert torch.equal(made[0], expected[0])


@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_the_state_in_a_tf32_product_is_rounded_to_nearest_not_cut(regime, device):
    gates, w_hh = torch.zeros(1, 64, device=device), torch.zeros(64, 16, device=device)
    h0 = torch.zeros(1, 16, device=device)
    w_hh[32, 1], h0[0, 1] = 1.0, 1 + 0.75 * 2.0**-10  # g of the first column reads the second
    plan = dataclasses.replace(plan_of(regime, 16), input_precision="tf32")
    tensors = (gates, w_hh, h0, torch.zeros(1, 16, device=device))
    _, cell = scan_by(plan, tensors, segments_of([1], device))
    expected = torch.tensor(1 + 2.0**-10).tanh() / 2
    assert abs(cell[0, 0].cpu() - expected) < 1e-6


@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_no_nan_is_rounded_away(regime, device):
    gates, w_hh, h0, c0 = (tensor.detach() for tensor in drawn([1], 16, device))
    h0.view(torch.int32)[0, 3] = 0x7FFFFFFF  # every bit set: rounding up would carry into the sign
    plan = dataclasses.replace(plan_of(regime, 16), input_precision="tf32")
    hidden, _ = scan_by(plan, (gates, w_hh, h0, c0), segments_of([1], device))
    assert hidden.isnan().all()


def test_no_gradient_wanted_and_inputs_unchanged(device):
    lengths = [2, 3]
    inputs = [tensor.detach() for tensor in drawn(lengths, 16, device)]
    copies = [tensor.clone() for tensor in inputs]
    hidden, cell = lstm_scan(*inputs, segments_of(lengths, device))
    assert not hidden.requires_grad
    assert not cell.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


def test_frozen_weights_get_no_gradient(device):
    gates, w_hh, h0, c0 = drawn([2, 1], 16, device)
    w_hh.requires_grad_(False)
    hidden, _ = lstm_scan(gates, w_hh, h0, c0, segments_of([2, 1], device))
    hidden.sum().backward()
    assert gates.grad is not None
    assert h0.grad is not None
    assert w_hh.grad is None


BOUNDS = {"ieee": (2e-6, 1e-5), "tf32": (5e-4, 1e-3), "bf16": (5e-3, 5e-3)}


def ragged(count, longest):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(1, longest + 1, (count,), generator=generator).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("size", [16, 33, 64, 96, 128, 200, 256, 300, 512])
@pytest.mark.parametrize("save", ["state", "gates"])
def test_full_sizes_within_the_bounds_of_the_precision(size, precision, save):
    lengths = ragged(70, 256)
    segments = segments_of(lengths, "cuda")

    def run(*tensors):
        return lstm_scan(*tensors, segments, save=save, precision=precision)

    assert_like_the_loop(run, drawn(lengths, size, "cuda"), lengths, *BOUNDS[precision])


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 128, 256, 320])
def test_running_again_gives_the_same_bits(size):
    lengths = ragged(3000, 40)  # above 2112 segments a program takes 32
    segments, inputs = segments_of(lengths, "cuda"), drawn(lengths, size, "cuda")

    def run():
        outputs = lstm_scan(*inputs, segments)
        return [*outputs, *torch.autograd.grad(sum(o.square().sum() for o in outputs), inputs)]

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 128, 320])
def test_bfloat16_tensors(size):
    lengths = ragged(70, 128)
    segments = segments_of(lengths, "cuda")
    narrow = [t.detach().bfloat16().requires_grad_() for t in drawn(lengths, size, "cuda")]
    hidden, cell = lstm_scan(*narrow, segments)
    assert hidden.dtype == cell.dtype == torch.bfloat16
    expected = loop(*(t.detach().double() for t in narrow), lengths)
    # rounding the output itself adds 2^-9 of a state within [-1, 1]
    assert (hidden.double() - expected[0]).abs().max() < 5e-3 + 2**-9
    hidden.sum().backward()
    assert all(t.grad.dtype == torch.bfloat16 and t.grad.isfinite().all() for t in narrow)
