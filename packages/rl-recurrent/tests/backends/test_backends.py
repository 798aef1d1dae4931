from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from rl_layout import Segments
from rl_recurrent.backends import pack, pad
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.backends.static import scan
from rl_recurrent.cells import CELLS
from rl_recurrent.cells.cell import RowWeights
from rl_recurrent.functional import lstm
from rl_recurrent.network import Network

BACKENDS = ["pad", "pack", "scan"]
LENGTHS = [[1], [1, 1, 1], [6], [4, 4, 4], [3, 1, 7, 7, 2, 11], [1, 2, 60, 300]]
both_cells = pytest.mark.parametrize("cell", ["lstm", "gru"])
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@both_cells
@each_backend
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_backends_equal_the_reference(layer, backend, cell, lengths):
    case = layer(cell, lengths)
    assert_close(case.run(backend), case.run("reference"), rtol=1e-9, atol=1e-11)


@both_cells
@each_backend
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), size=st.integers(1, 7))
def test_backends_equal_the_reference_for_any_lengths_and_sizes(
    layer, backend, cell, lengths, size
):
    case = layer(cell, lengths, inputs=2, size=size)
    assert_close(case.run(backend), case.run("reference"), rtol=1e-9, atol=1e-11)


@both_cells
@each_backend
def test_depth_is_the_longest_segment(layer, backend, cell):
    counts = []
    for lengths in ([9, 5], [9, 5] * 30):
        case = layer(cell, lengths)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            case.run(backend, torch.float32)
        counts.append(sum(event.count for event in seen.key_averages()))
    assert counts[1] < 2 * counts[0]  # 30 times the rows; columns of a scan reach up to 2 * 9 - 1


@both_cells
@each_backend
def test_float32_layers_stay_within_error_bounds(layer, backend, cell):
    case = layer(cell, [70, 33, 1, 128, 12], inputs=17, size=31)
    exact, found = case.run("reference"), case.run(backend, torch.float32)
    for wanted, got in zip(exact[:1], found[:1], strict=True):
        assert (wanted - got).abs().max() < 2e-6
    for wanted, got in zip(exact, found, strict=True):
        assert (wanted - got).norm() < 1e-5 * wanted.norm()


@both_cells
def test_pieces_of_any_size_give_the_same_result(layer, cell, monkeypatch):
    case = layer(cell, [5, 1, 9, 3, 9])
    wanted = case.run("reference")
    monkeypatch.setattr(pack, "GATES", 1)
    for rows in (1, 4, 10):
        monkeypatch.setattr(pack, "MIN_ROWS", rows)
        assert_close(case.run("pack"), wanted, rtol=1e-9, atol=1e-11)


@both_cells
def test_empty_cells_of_a_block_hold_the_state(layer, cell, monkeypatch):
    monkeypatch.setattr(pad, "block_plan", lambda segments: pad.BlockPlan.of(segments, 0.7))
    case = layer(cell, [5, 1, 9, 3, 9])
    assert_close(case.run("pad"), case.run("reference"), rtol=1e-9, atol=1e-11)


@both_cells
@pytest.mark.parametrize("max_length", [9, 10, 40])
def test_scan_gives_the_same_for_any_max_length(layer, cell, max_length):
    case = layer(cell, [5, 1, 9, 3, 9])
    found = case.run("scan", max_length=max_length)
    assert_close(found, case.run("reference"), rtol=1e-9, atol=1e-11)


def test_segment_beyond_max_length_raises(layer):
    with pytest.raises(RuntimeError, match="longer than max_length"):
        layer("gru", [1, 30]).run("scan", max_length=10)


@both_cells
@each_backend
def test_gradients_agree_with_finite_differences(layer, backend, cell):
    case = layer(cell, [3, 1, 2], inputs=2, size=3)
    tensors = [t.clone().requires_grad_() for t in case.tensors]
    made = lambda *given: tuple(case.outputs(backend, list(given), case.segments, {}))  # noqa: E731
    assert torch.autograd.gradcheck(made, tensors)


@each_backend
def test_nan_stays_in_its_segment(layer, backend):
    case = layer("gru", [4, 3, 6])
    clean = case.run(backend)
    case.tensors[0][5] = torch.nan  # in the second segment
    dirty = case.run(backend)
    others = torch.tensor([True] * 4 + [False] * 3 + [True] * 6)
    assert torch.equal(dirty[0][others], clean[0][others])
    assert torch.equal(dirty[2][others], clean[2][others])  # the gradient of the inputs
    assert dirty[0][5:7].isnan().all()


@pytest.mark.parametrize(
    ("cell", "backend", "save", "width"),
    [
        ("lstm", "pack", "state", 3 + 2 * 4),  # x, h and c
        ("lstm", "pack", "auto", 3 + 6 * 4),  # and the gates
        ("lstm", "scan", "auto", 3 + 2 * 4),
        ("gru", "pack", "state", 3 + 1 * 4),  # x and h
        ("gru", "pack", "auto", 3 + 5 * 4),  # and the gates, and h's share of n
    ],
)
def test_saved_memory_follows_the_setting(layer, cell, backend, save, width):
    case = layer(cell, [30, 50], inputs=3, size=4)
    given = [t.clone().requires_grad_() for t in case.tensors]
    kept: dict[int, int] = {}

    def remember(tensor):
        if tensor.dtype.is_floating_point:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda t: t):
        made = case.outputs(backend, given, case.segments, {"save": save})
    rows = 8 * sum(case.segments.lengths.tolist())
    weights = sum(t.numel() * 8 for t in given[1:])
    assert rows * width < sum(kept.values()) <= rows * width + weights
    assert len(made) == {"lstm": 3, "gru": 2}[cell]


@both_cells
@pytest.mark.parametrize("save", ["state", "gates"])
def test_saved_and_recomputed_gates_give_the_same_gradients(layer, cell, save, monkeypatch):
    case = layer(cell, [5, 1, 9, 3, 9])
    monkeypatch.setattr(pack, "GATES", 1)
    monkeypatch.setattr(pack, "MIN_ROWS", 7)  # several pieces
    assert_close(case.run("pack", save=save), case.run("reference"), rtol=1e-9, atol=1e-11)


@both_cells
def test_retained_graph_gives_its_gradient_twice(layer, cell):
    case = layer(cell, [3, 5])
    given = [t.clone().requires_grad_() for t in case.tensors]
    hidden, *_ = case.outputs("pack", given, case.segments, {"save": "gates"})
    first = torch.autograd.grad(hidden.sum(), given, retain_graph=True)
    assert_close(torch.autograd.grad(hidden.sum(), given), first, rtol=0, atol=0)


@both_cells
def test_frozen_weights_get_no_gradient_and_inputs_do(layer, cell):
    case = layer(cell, [4, 2])
    frozen = [case.tensors[0].clone().requires_grad_(), *case.tensors[1:]]
    made = case.outputs("pack", frozen, case.segments, {})
    torch.autograd.backward(made, case.seen)
    assert_close(frozen[0].grad, case.run("pack")[len(made)])


def test_second_derivative_raises(layer):
    case = layer("gru", [3, 2])
    given = [t.clone().requires_grad_() for t in case.tensors]
    (hidden, _) = case.outputs("pack", given, case.segments, {})
    (grad,) = torch.autograd.grad(hidden.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@each_backend
def test_rows_are_counted_without_padding(layer, backend):
    case = layer("lstm", [2, 3])
    ids = torch.tensor([[4, 4, -1, -1], [-1, 6, 6, 6]])
    gaps = Segments.from_ids(ids)
    assert gaps.lengths.tolist() == [2, 3]
    plain = case.run(backend)
    case.segments = gaps
    assert_close(case.run(backend), plain, rtol=0, atol=0)


def test_batch_of_one_row_equals_the_reference():
    weights = RowWeights(*map(torch.zeros, ((6, 3), (6, 2), 6, 2)))
    segments, x = Segments.from_lengths(torch.tensor([1])), torch.zeros(1, 3)
    for backend in (pad, pack, scan):
        (made,) = backend.layer(CELLS["gru"], x, weights, (torch.ones(1, 2),), segments, Settings())
        assert_close(made, torch.full((1, 2), 0.5))


@pytest.mark.gpu
@both_cells
@pytest.mark.parametrize("backend", [*BACKENDS, "triton"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_backends_on_cuda_equal_the_reference(layer, backend, cell, lengths):
    case = layer(cell, lengths, inputs=33, size=65)
    exact = case.run("reference")
    options = {"precision": "ieee"} if backend == "triton" else {}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = case.run(backend, torch.float32, "cuda", **options)
    for wanted, got in zip(exact, found, strict=True):
        assert (wanted - got).norm() < 2e-5 * wanted.norm() + 1e-6


@pytest.mark.gpu
@both_cells
@pytest.mark.parametrize("size", [64, 128, 256, 320, 512])
def test_backends_on_cuda_agree_at_full_size(layer, cell, size):
    lengths = torch.randint(1, 257, (96,), generator=torch.Generator().manual_seed(size)).tolist()
    case = layer(cell, lengths, inputs=96, size=size)
    exact = case.run("pack")
    for backend in (*BACKENDS, "triton"):
        options = {"precision": "ieee"} if backend == "triton" else {}
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            found = case.run(backend, torch.float32, "cuda", **options)
        for wanted, got in zip(exact, found, strict=True):
            assert (wanted - got).norm() < 5e-5 * wanted.norm() + 1e-6, backend


def test_final_states_of_pack_and_pad_agree_for_huge_inputs():
    torch.manual_seed(0)
    network = Network.of(torch.nn.LSTM(2, 3))
    segments = Segments.from_lengths(torch.tensor([20, 20, 19]))
    x = torch.randn(59, 2) * 1e7
    ends = [lstm(x, segments, None, network, Settings(name))[1] for name in ("pack", "pad")]
    assert_close(*ends)
