import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_value import reference
from rl_value.returns import linear_scan
from rl_value.scan.block_scan import PIECE
from rl_value.scan.doubling_scan import doubling_scan, jumping_scan
from rl_value.scan.linear_scan import scan_rows

decays = st.sampled_from([0.0, 0.3, 0.9405, 0.999, 1.0])


def draw_rows(seed, num_steps, decay, columns=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    a = torch.full((num_steps, columns), decay, dtype=dtype)
    b = torch.randn(num_steps, columns, generator=generator, dtype=dtype)
    cut = torch.rand(num_steps, 1, generator=generator) < 0.1
    return a, b, cut


def test_linear_scan_of_a_literal_case():
    a = torch.tensor([0.5, 0.25, 0.5, 1.0, 0.5])
    b = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    cut = torch.tensor([False, False, True, False, False])
    # y4 = 16, y3 = 8 + 16, y2 = 4 (cut), y1 = 2 + 4 / 4, y0 = 1 + 3 / 2
    assert linear_scan(a, b, cut).tolist() == [2.5, 3.0, 4.0, 24.0, 16.0]


@given(st.integers(0, 2**31), st.integers(1, 300), decays)
def test_linear_scan_equals_the_loop(seed, num_steps, decay):
    a, b, cut = draw_rows(seed, num_steps, decay)
    torch.testing.assert_close(linear_scan(a, b, cut), reference.linear_scan(a, b, cut))


@pytest.mark.parametrize("scan", [scan_rows, doubling_scan])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 2_047, 2_049, 16_385])
def test_every_size_of_block_equals_the_loop(scan, size):
    a, b, cut = draw_rows(3, size, 0.97, columns=1)
    weight = torch.where(cut, 0, a)[:, 0]
    expected = reference.linear_scan(a, b, cut)[:, 0]
    torch.testing.assert_close(scan(weight, b[:, 0]), expected)


@pytest.mark.parametrize("size", [PIECE - 1, PIECE + 3, 2 * PIECE + 5])
def test_scan_carries_from_piece_to_piece(size):
    a, b, cut = draw_rows(3, size, 0.97, columns=1)
    weight = torch.where(cut, 0, a)[:, 0]
    torch.testing.assert_close(scan_rows(weight, b[:, 0]), doubling_scan(weight, b[:, 0]))


@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 4))
def test_jumps_equal_a_loop_over_successors(seed, size, reach):
    a, b, _ = draw_rows(seed, size, 0.9, columns=3)
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.randint(1, reach + 1, (size,), generator=generator)
    successor = (torch.arange(size) + jumps).clamp(max=size)
    expected = torch.zeros(size + 1, 3, dtype=torch.float64)
    for i in reversed(range(size)):
        expected[i] = b[i] + a[i] * expected[successor[i]]
    torch.testing.assert_close(jumping_scan(a, b, successor), expected[:-1])


@pytest.mark.parametrize("decay", [0.9405, 0.99, 0.999, 1.0])
def test_float32_is_stable_over_any_length(decay):
    a, b, _ = draw_rows(1, 20_000, decay, columns=1, dtype=torch.float32)
    cut = torch.zeros(20_000, 1, dtype=torch.bool)
    exact = reference.linear_scan(a.double(), b.double(), cut)
    found = linear_scan(a, b, cut)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() <= 5e-7 * exact.abs().max()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("size", [60, 20_000])
def test_nothing_passes_a_cut(poison, size):
    a, b, cut = draw_rows(5, size, 1.0, columns=1, dtype=torch.float32)
    cut[size // 2] = cut[size // 2 + 10] = True
    clean = linear_scan(a, b, cut)
    b[size // 2 + 1 : size // 2 + 11] = poison  # a whole trajectory
    found = linear_scan(a, b, cut)
    others = torch.ones(size, dtype=torch.bool)
    others[size // 2 + 1 : size // 2 + 11] = False
    assert found[others].equal(clean[others])
    assert not found[size // 2 + 1].isfinite() or poison == 1e38


def test_nothing_passes_the_end_of_a_row_of_time():
    b = torch.ones(3, 4, 1)
    b[1] = float("nan")
    found = linear_scan(torch.ones(1), b)
    assert found[0].flatten().tolist() == found[2].flatten().tolist() == [4.0, 3.0, 2.0, 1.0]


def test_time_may_be_any_dimension():
    a, b = torch.rand(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    cut = torch.rand(2, 5, 3) < 0.3
    for dim in range(3):
        moved = [value.movedim(-2, dim) for value in (a, b, cut)]
        found = linear_scan(*moved, time_dim=dim)
        torch.testing.assert_close(found.movedim(dim, -2), linear_scan(a, b, cut))


def test_an_empty_batch_stays_empty():
    assert linear_scan(torch.ones(1), torch.zeros(0, 1)).shape == (0, 1)


@pytest.mark.parametrize("size", [8, 11, 100])
def test_the_arguments_are_not_changed(size):
    a, b, cut = draw_rows(5, size, 0.9, columns=1)
    copies = [value.clone() for value in (a, b, cut)]
    found = linear_scan(a, b, cut)
    assert all(torch.equal(x, y) for x, y in zip((a, b, cut), copies, strict=True))
    one = torch.ones(1)
    assert linear_scan(one, one).data_ptr() != one.data_ptr()
    assert found.data_ptr() != b.data_ptr()


def test_gradients_are_exact_to_the_second_order():
    a, b, cut = draw_rows(5, 9, 0.8)
    a, b = (a * torch.rand_like(a)).requires_grad_(), b.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: linear_scan(a, b, cut), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: linear_scan(a, b, cut), (a, b))


def test_gradients_do_not_pass_a_cut():
    a, b, cut = draw_rows(5, 9, 0.8, columns=1)
    cut[:], cut[4] = False, True
    b[7] = float("nan")
    b.requires_grad_(), a.requires_grad_()
    linear_scan(a, b, cut)[:5].sum().backward()
    assert b.grad[5:].eq(0).all()
    assert a.grad[:5].isfinite().all()


def test_compiled_code_gives_the_same():
    a, b, cut = draw_rows(5, 30, 0.8)
    compiled = torch.compile(linear_scan, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b, cut), linear_scan(a, b, cut))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo
def test_compiled_code_gives_the_same_gradients():
    a, b, cut = draw_rows(5, 30, 0.8)
    b[25], cut[24] = float("nan"), True
    leaves = a.requires_grad_(), b.requires_grad_()
    compiled = torch.compile(linear_scan, backend="eager", fullgraph=True)
    found, expected = (
        torch.autograd.grad(call(a, b, cut)[:25].square().sum(), leaves)
        for call in (compiled, linear_scan)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("a", "b", "cut", "message"),
    [
        (torch.ones(3).half(), torch.ones(3), None, "a: expected float32"),
        (torch.ones(3), torch.ones(3).long(), None, "b: expected float32"),
        (torch.ones(3), torch.ones(3), torch.ones(3), "cut: expected torch.bool"),
    ],
)
def test_a_wrong_dtype_is_refused(a, b, cut, message):
    with pytest.raises(TypeError, match=message):
        linear_scan(a, b, cut)


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"a: expected a shape that broadcasts .*\[3, 1\]"):
        linear_scan(torch.ones(4, 1), torch.ones(3, 1))
    with pytest.raises(ValueError, match="time_dim=2: there is no such dimension"):
        linear_scan(torch.ones(1), torch.ones(3, 1), time_dim=2)


@pytest.mark.gpu
def test_cuda_equals_the_cpu():
    a, b, cut = draw_rows(5, 5_000, 0.99)
    found = linear_scan(a.cuda(), b.cuda(), cut.cuda())
    torch.testing.assert_close(found.cpu(), linear_scan(a, b, cut))


def test_flat_rows_need_no_dimension_of_columns():
    weight = torch.tensor([0.5, 0.0, 0.5])
    assert scan_rows(weight, torch.ones(3)).tolist() == [1.5, 1.0, 1.0]


def test_nan_times_zero_decay_stays_nan():
    found = doubling_scan(torch.tensor([torch.nan, 0.5]), torch.tensor([1.0, 0.0]))
    assert found.isnan().tolist() == [True, False]
