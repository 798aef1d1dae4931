"""Precisions of products: what is rounded, and how far results may be from float64."""

import pytest
import torch

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


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_scan_chooses_a_plan(cell, precision, device, segments_of):
    lengths = [2, 5, 1]

    def run(*tensors):
        segments = segments_of(lengths, device)
        return cell.scan(*tensors, segments=segments, precision=precision)

    bounds = BOUNDS[precision if device.type == "cuda" else "ieee"]
    cell.assert_like_the_loop(run, cell.drawn(lengths, 20, device), lengths, bounds)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device may multiply in tf32")
def test_auto_precision_is_float32_without_tf32(cell, segments_of):
    inputs, segments = cell.drawn([2, 1], 16), segments_of([2, 1])
    found = (cell.scan(*inputs, segments=segments, precision=p)[0] for p in ("auto", "ieee"))
    assert torch.equal(*found)


def with_one_product(cell, device):
    """Zeros, but for one state 1 + 3/4 ulp of tf32, and one weight 1 towards g or n."""
    gates, w_hh, *rest = (torch.zeros_like(t) for t in cell.drawn([1], 16, device))
    h0 = rest[1 if cell.has_bias else 0]
    w_hh[32, 1], h0[0, 1] = 1.0, 1 + 0.75 * 2.0**-10  # its first column reads the second
    return gates, w_hh, *rest


@pytest.mark.parametrize("regime", ["resident", "walk"])
@pytest.mark.parametrize(("precision", "read"), [("tf32", 1.0), ("tf32x3", 0.75)])
def test_states_in_products_are_rounded_by_the_precision(
    cell, regime, precision, read, device, plan_of, segments_of
):
    plan, inputs = plan_of(regime, 16, precision=precision), with_one_product(cell, device)
    last = cell.by(plan, inputs, segments_of([1], device))[-1]
    new = 1 + read * 2.0**-10  # what the product is taken of
    expected = torch.tensor(new if cell.name == "lstm" else new / 2).tanh() / 2
    assert abs(last[0, 0].cpu() - expected) < 1e-7


@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_rounding_keeps_nan(cell, regime, device, plan_of, segments_of):
    inputs = [tensor.detach() for tensor in cell.drawn([1], 16, device)]
    h0 = inputs[-cell.num_states]
    h0.view(torch.int32)[0, 3] = 0x7FFFFFFF  # every bit set: rounding up would carry into the sign
    plan = plan_of(regime, 16, precision="tf32")
    assert cell.by(plan, inputs, segments_of([1], device))[0].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("size", [16, 33, 64, 96, 128, 200, 256, 300, 512])
@pytest.mark.parametrize("save", ["state", "gates"])
def test_full_sizes_stay_within_error_bounds(cell, size, precision, save, segments_of):
    lengths = ragged(70, 256)
    segments = segments_of(lengths, "cuda")

    def run(*tensors):
        return cell.scan(*tensors, segments=segments, save=save, precision=precision)

    inputs = cell.drawn(lengths, size, "cuda")
    cell.assert_like_the_loop(run, inputs, lengths, BOUNDS[precision])


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 128, 256, 320])
def test_second_run_gives_the_same_bits(cell, size, segments_of):
    lengths = ragged(3000, 40)  # above 2112 segments a program takes 32
    segments, inputs = segments_of(lengths, "cuda"), cell.drawn(lengths, size, "cuda")

    def run():
        outputs = cell.scan(*inputs, segments=segments)
        return [*outputs, *torch.autograd.grad(sum(o.square().sum() for o in outputs), inputs)]

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 128, 320])
def test_bfloat16_tensors_stay_within_error_bounds(cell, size, segments_of):
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
