from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from rl_layout import Segments
from rl_recurrent import Network, Settings
from rl_recurrent.backends.compiled import layer as compiled
from rl_recurrent.backends.compiled import numba_loops
from rl_recurrent.backends.compiled.threads import num_threads
from rl_recurrent.functional import lstm
from rl_recurrent.testing import check_backend

SINGLE = torch.float32
both_cells = pytest.mark.parametrize("cell", ["lstm", "gru"])


def test_loops_pass_the_check_of_backends():
    check_backend(compiled)


@both_cells
@pytest.mark.parametrize("other", ["reference", "pack"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    inputs=st.integers(1, 7),
    size=st.integers(1, 9),
)
def test_loops_equal_other_backends_for_any_lengths_and_sizes(
    layer, cell, other, lengths, inputs, size
):
    case = layer(cell, lengths, inputs=inputs, size=size)
    assert_close(case.run("compiled", SINGLE), case.run(other), rtol=1e-4, atol=1e-5)


@both_cells
def test_segments_beyond_one_chunk_equal_the_reference(layer, cell):
    lengths = [1 + 7 * number % 11 for number in range(2 * numba_loops.COLUMNS + 3)]
    case = layer(cell, lengths, inputs=6, size=10)
    assert_close(case.run("compiled", SINGLE), case.run("reference"), rtol=1e-4, atol=2e-5)


def functions_of(act):
    """The names of the functions that are called, and what comes of it."""
    seen = set()
    sys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_name))
    try:
        return act(), seen
    finally:
        sys.setprofile(None)


@both_cells
@pytest.mark.usefixtures("two_threads")
def test_two_threads_give_the_numbers_of_one(layer, cell):
    lengths = [1 + 11 * number % 47 for number in range(2 * compiled.MIN_COLUMNS + 5)]
    case = layer(cell, lengths, inputs=70, size=130)
    found, called = functions_of(lambda: case.run("compiled", SINGLE))
    assert ("run_together" in called) == (num_threads() > 1)
    torch.set_num_threads(1)
    assert_close(found, case.run("compiled", SINGLE), rtol=1e-4, atol=1e-5)
    assert_close(found, case.run("reference"), rtol=1e-3, atol=1e-4)  # 500 rows are added up


@pytest.mark.usefixtures("two_threads")
def test_small_batches_stay_in_one_thread(layer):
    case = layer("gru", [9] * 40, inputs=4, size=8)
    _, called = functions_of(lambda: case.run("compiled", SINGLE))
    assert "run_together" not in called


@both_cells
def test_float32_states_and_gradients_stay_within_error_bounds(layer, cell):
    case = layer(cell, [70, 33, 1, 128, 12], inputs=17, size=31)
    exact, found = case.run("reference"), case.run("compiled", SINGLE)
    assert (exact[0] - found[0]).abs().max() < 2e-6
    for wanted, got in zip(exact, found, strict=True):
        assert (wanted - got).norm() < 1e-5 * wanted.norm()


@both_cells
def test_saved_and_recomputed_gates_give_the_same_bits(layer, cell):
    case = layer(cell, [5, 1, 9, 3, 9])
    kept, recomputed = (case.run("compiled", SINGLE, save=save) for save in ("gates", "state"))
    assert_close(recomputed, kept, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("cell", "save", "width"),
    [
        ("lstm", "state", 3 + 2 * 4),  # x, h and c
        ("lstm", "auto", 3 + 6 * 4),  # and the gates
        ("gru", "state", 3 + 1 * 4),  # x and h
        ("gru", "auto", 3 + 5 * 4),  # and the gates, and h's share of n
    ],
)
def test_saved_memory_follows_the_setting(layer, cell, save, width):
    case, kept = layer(cell, [30, 50], inputs=3, size=4), {}
    tensors = [t.float().requires_grad_() for t in case.tensors]

    def remember(tensor):
        if tensor.dtype == SINGLE:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda t: t):
        case.outputs("compiled", tensors, case.segments, {"save": save})
    rows, weights = 4 * 80, sum(4 * t.numel() for t in tensors[1:])
    assert rows * width < sum(kept.values()) <= rows * width + weights


@both_cells
def test_retained_graph_gives_its_gradient_twice(layer, cell):
    case = layer(cell, [3, 5])
    tensors = [t.float().requires_grad_() for t in case.tensors]
    hidden, *_ = case.outputs("compiled", tensors, case.segments, {})
    first = torch.autograd.grad(hidden.sum(), tensors, retain_graph=True)
    assert_close(torch.autograd.grad(hidden.sum(), tensors), first, rtol=0, atol=0)


@both_cells
@pytest.mark.parametrize("wanted", range(5))
def test_gradient_of_one_tensor_alone_is_that_of_all(layer, cell, wanted):
    case = layer(cell, [4, 2])
    alone = [t.float().requires_grad_(place == wanted) for place, t in enumerate(case.tensors)]
    made = case.outputs("compiled", alone, case.segments, {})
    torch.autograd.backward(made, [t.float() for t in case.seen])
    assert [t.grad is not None for t in alone] == [place == wanted for place in range(len(alone))]
    together = case.run("compiled", SINGLE)[len(made) + wanted]
    assert_close(alone[wanted].grad.double(), together, rtol=0, atol=0)


def test_gradient_through_cells_alone_equals_that_of_pack(layer):
    case, grads = layer("lstm", [4, 2, 3]), []
    for backend in ("compiled", "pack"):
        tensors = [t.float().requires_grad_() for t in case.tensors]
        *_, cells = case.outputs(backend, tensors, case.segments, {})
        grads.append(torch.autograd.grad(cells.square().sum(), tensors))
    assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_inputs_whose_rows_are_apart_in_memory_give_the_same(layer):
    case = layer("gru", [4, 2, 3])
    plain = case.run("compiled", SINGLE)
    case.tensors = [t.t().contiguous().t() if t.ndim == 2 else t for t in case.tensors]
    assert_close(case.run("compiled", SINGLE), plain, rtol=0, atol=0)


@both_cells
def test_nan_stays_in_its_segment(layer, cell):
    case = layer(cell, [4, 3, 6])
    clean = case.run("compiled", SINGLE)
    case.tensors[0][5] = torch.nan  # in the second segment
    dirty = case.run("compiled", SINGLE)
    others = torch.tensor([True] * 4 + [False] * 3 + [True] * 6)
    d_x = {"gru": 2, "lstm": 3}[cell]
    assert torch.equal(dirty[0][others], clean[0][others])
    assert torch.equal(dirty[d_x][others], clean[d_x][others])
    assert dirty[0][5:7].isnan().all()


def test_rows_are_counted_without_padding(layer):
    case = layer("lstm", [2, 3])
    plain = case.run("compiled", SINGLE)
    case.segments = Segments.from_ids(torch.tensor([[4, 4, -1, -1], [-1, 6, 6, 6]]))
    assert_close(case.run("compiled", SINGLE), plain, rtol=0, atol=0)


def test_inputs_beyond_any_range_saturate():
    torch.manual_seed(0)
    network, segments = Network.of(torch.nn.LSTM(2, 3)), Segments.from_lengths(torch.tensor([9, 5]))
    for scale in (1e7, torch.inf):
        x = torch.randn(14, 2) * torch.tensor([scale, 0.0]).nan_to_num(posinf=3e38)
        ends = [
            lstm(x, segments, None, network, Settings(name))[1] for name in ("compiled", "pack")
        ]
        assert_close(*ends)


def test_second_derivative_raises(layer):
    case = layer("gru", [3, 2])
    tensors = [t.float().requires_grad_() for t in case.tensors]
    hidden, _ = case.outputs("compiled", tensors, case.segments, {})
    (grad,) = torch.autograd.grad(hidden.square().sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_activations_are_near_the_exact_ones():
    # rows of a GRU whose gates r and z see x, and n too, with no share of h
    x = np.concatenate([np.linspace(-20, 20, 4001), [np.inf, -np.inf, 3e38]]).astype(np.float32)
    sums = np.concatenate([x, x, x])[None].copy()
    state = np.zeros((1, len(x)), np.float32)
    numba_loops.gru_step(sums, np.zeros_like(sums), state)
    exact = torch.from_numpy(x).double()
    opened = torch.from_numpy(sums[0]).double().chunk(3)
    assert (opened[0] - exact.sigmoid()).abs().max() < 3e-7
    assert (opened[2] - exact.tanh()).abs().max() < 5e-7
