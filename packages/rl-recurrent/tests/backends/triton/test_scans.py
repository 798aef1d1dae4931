"""The kernels of both cells against an independent loop, interpreted or compiled."""

import pytest
import torch

from rl_layout import Segments


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
def test_outputs_and_gradients_equal_the_float64_loop(
    cell, regime, size, lengths, save, device, plan_of, segments_of
):
    segments, plan = segments_of(lengths, device), plan_of(regime, size)

    def run(*tensors):
        return cell.by(plan, tensors, segments, save=save)

    cell.assert_like_the_loop(run, cell.drawn(lengths, size, device), lengths)


@pytest.mark.parametrize(
    ("cell", "regime"),
    [("lstm", "resident"), ("lstm", "steps"), ("gru", "resident"), ("gru", "walk")],
    indirect=["cell"],
)
def test_long_segment_next_to_a_short_one_equals_the_loop(
    cell, regime, device, plan_of, segments_of
):
    lengths, size = [2, 41], 5
    segments = segments_of(lengths, device)

    def run(*tensors):
        return cell.by(plan_of(regime, size), tensors, segments, save="gates")

    cell.assert_like_the_loop(run, cell.drawn(lengths, size, device), lengths)


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled products need 16 segments a tile")
@pytest.mark.parametrize("regime", ["resident", "walk", "steps"])
def test_tiles_of_very_different_lengths_equal_the_loop(cell, regime, device, plan_of, segments_of):
    lengths = [1, 12, 2, 1, 5]  # two a tile, longest first: 12 5, 2 1, 1 and an empty slot
    segments = segments_of(lengths)

    def run(*tensors):
        return cell.by(plan_of(regime, 16, block_s=2), tensors, segments)

    cell.assert_like_the_loop(run, cell.drawn(lengths, 16), lengths)


@pytest.mark.parametrize("regime", ["resident", "walk"])
@pytest.mark.parametrize(
    ("cell", "used"),
    [("lstm", 0), ("lstm", 1), ("gru", 0)],
    indirect=["cell"],
    ids=["lstm-h", "lstm-c", "gru-h"],
)
def test_gradients_of_final_states_alone(cell, used, regime, device, plan_of, segments_of):
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


def test_gates_are_saved_or_recomputed_as_requested(cell, device, segments_of):
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


@pytest.mark.parametrize("regime", ["resident", "walk", "steps"])
def test_nan_stays_in_its_segment(cell, regime, device, plan_of, segments_of):
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


def test_huge_gates_saturate(cell, device, plan_of, segments_of):
    lengths = [3, 2]
    inputs = cell.drawn(lengths, 16, device)
    inputs[0].data *= 1e4
    made = cell.by(plan_of("resident", 16), inputs, segments_of(lengths, device))
    expected = cell.loop(*(tensor.detach().double() for tensor in inputs), lengths)
    for ours, theirs in zip(made, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-6, rtol=1e-6)
    assert torch.autograd.grad(made[0].sum(), inputs[0])[0].isfinite().all()


@pytest.mark.parametrize("regime", ["resident", "walk"])
def test_strided_inputs_equal_contiguous_ones(cell, regime, device, plan_of, segments_of):
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


def test_scan_skips_padding_rows(cell, device, plan_of, segments_of):
    ids = torch.tensor([4, 4, -1, -1, 7, -1, 9], device=device)
    inputs, plan = cell.drawn([2, 1, 1], 16, device), plan_of("resident", 16)
    made = cell.by(plan, inputs, Segments.from_ids(ids))
    expected = cell.by(plan, inputs, segments_of([2, 1, 1], device))
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_scan_without_gradient_leaves_its_inputs_unchanged(cell, device, segments_of):
    lengths = [2, 3]
    inputs = [tensor.detach() for tensor in cell.drawn(lengths, 16, device)]
    copies = [tensor.clone() for tensor in inputs]
    made = cell.scan(*inputs, segments=segments_of(lengths, device))
    assert not any(state.requires_grad for state in made)
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


def test_frozen_weights_get_no_gradient(cell, device, segments_of):
    gates, w_hh, *rest = cell.drawn([2, 1], 16, device)
    w_hh.requires_grad_(False)
    cell.scan(gates, w_hh, *rest, segments=segments_of([2, 1], device))[0].sum().backward()
    assert all(tensor.grad is not None for tensor in (gates, *rest))
    assert w_hh.grad is None


def test_scan_of_no_rows_is_empty(cell, device, plan_of):
    gates, w_hh, *rest = cell.drawn([1], 16, device)
    segments = Segments.from_ids(torch.tensor([-1, -1], device=device))
    states = [state[:0] for state in rest[-cell.num_states :]]
    tensors = gates[:0], w_hh, *rest[: -cell.num_states], *states
    made = cell.by(plan_of("walk", 16), tensors, segments)
    assert [tuple(state.shape) for state in made] == [(0, 16)] * cell.num_states
    assert not torch.autograd.grad(made[0].sum(), w_hh)[0].any()
