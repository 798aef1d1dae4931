import math

import pytest
import torch

import rl_value
from rl_value.scan.triton.linear_scan import TileSizes, linear_scan, power_of_two_above, scan_by

# numpy, which interprets, warns of products that the kernel computes and then leaves out
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")


def loop(a, b):
    """Independent plain recurrence, row by row from the last one."""
    following, found = torch.zeros_like(b[0]), []
    for t in reversed(range(len(b))):
        following = torch.where(a[t] == 0, b[t], b[t] + a[t] * following)
        found.append(following)
    return torch.stack(found[::-1])


def drawn(shape, chance=0.2, dtype=torch.float64, seed=0):
    """Decay in [0, 1), 0 in the rows that are cut, and terms."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)
    b = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    a[torch.rand(shape[0], generator=generator) < chance] = 0
    return a, b


def test_kernel_of_a_literal_case(device):
    a = torch.tensor([0.5, 0.0, 0.25, 1.0], device=device)
    b = torch.tensor([1.0, 2.0, 4.0, 8.0], device=device)
    # 4 + 8 / 4; 2 alone; 1 + 2 / 2
    assert linear_scan(a, b).tolist() == [2.0, 2.0, 6.0, 8.0]


@pytest.mark.parametrize("chance", [0.0, 0.15, 1.0])
@pytest.mark.parametrize(
    ("num_rows", "sizes"),
    [
        (1, TileSizes(16, 16, 4)),
        (13, TileSizes(16, 4, 4)),
        (16, TileSizes(16, 16, 4)),
        (
            22,
            TileSizes(4, 2, 2),
        ),  # six chunks, so three blocks of totals; the last one has two rows
    ],
)
def test_values_equal_the_loop(num_rows, sizes, chance, device):
    a, b = drawn((num_rows,), chance)
    found = scan_by(sizes, a.to(device), b.to(device))
    torch.testing.assert_close(found.cpu(), loop(a, b), atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize(("bad", "place"), [(math.nan, 3), (math.inf, 6), (3e38, 6), (math.nan, 8)])
def test_nothing_passes_a_cut(bad, place, device):
    a, b = (t.to(device) for t in drawn((9,), 0.0, torch.float32))
    a[[3, 5]] = 0  # three trajectories: rows 0 to 3, 4 and 5, 6 to 8
    spoilt = b.clone()
    spoilt[place] = bad
    other = torch.ones(9, dtype=torch.bool)
    other[slice(0, 4) if place == 3 else slice(6, 9)] = False
    clean, dirty = (scan_by(TileSizes(4, 2, 2), a, term) for term in (b, spoilt))
    assert torch.equal(clean[other], dirty[other])
    assert not torch.equal(clean, dirty)


def test_a_bad_weight_stays_in_its_trajectory_too(device):
    a, b = (t.to(device) for t in drawn((8,), 0.0, torch.float32))
    a[[2, 5]] = 0
    clean = scan_by(TileSizes(4, 2, 2), a, b)
    a[4] = math.nan
    dirty = scan_by(TileSizes(4, 2, 2), a, b)
    assert torch.equal(clean[:3], dirty[:3])
    assert torch.equal(clean[5:], dirty[5:])
    assert dirty[3:5].isnan().all()


def test_a_zero_weight_cuts(device):
    a = torch.tensor([0.5, 0.0, 0.5], device=device)
    b = torch.tensor([1.0, 2.0, math.nan], device=device)
    assert linear_scan(a, b)[:2].tolist() == [2.0, 2.0]
    assert linear_scan(a, b)[2].isnan()


def test_a_product_that_underflows_is_no_cut(device):
    a, b = torch.full((9,), 1e-30, device=device), torch.zeros(9, device=device)
    b[-1] = math.nan  # two factors further on, 1e-60 is zero in float32
    assert scan_by(TileSizes(4, 2, 2), a, b).isnan().all()


@pytest.mark.parametrize("decay", [0.9405, 1.0])
def test_float32_is_accurate_over_many_chunks(decay, device):
    a, b = drawn((90,), 0.01)
    a[a != 0] = decay
    expected = loop(a, b)
    found = scan_by(TileSizes(16, 8, 4), *(t.float().to(device) for t in (a, b)))
    assert (found.cpu() - expected).abs().max() <= 5e-7 * expected.abs().max()


def test_kernel_takes_strided_inputs(device):
    a, b = (t.to(device) for t in drawn((12,)))
    assert torch.equal(linear_scan(a[::2], b[::2]), linear_scan(a[::2].clone(), b[::2].clone()))


def test_kernel_of_no_rows_returns_no_rows(device):
    empty = torch.zeros(0, device=device)
    assert linear_scan(empty, empty).shape == (0,)


def test_inputs_are_unchanged(device):
    a, b = (t.to(device) for t in drawn((7,)))
    copies = [t.clone() for t in (a, b)]
    linear_scan(a, b)
    assert all(torch.equal(x, y) for x, y in zip((a, b), copies, strict=True))


def test_tile_sizes_follow_the_shape():
    assert TileSizes.of(1) == TileSizes(16, 16, 4096)
    assert TileSizes.of(300) == TileSizes(512, 256, 4096)
    assert TileSizes.of(1_000_000) == TileSizes(2048, 256, 4096)
    assert [power_of_two_above(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]


def test_a_cpu_is_refused_and_the_function_that_runs_there_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"got cpu\. Use rl_value\.linear_scan"):
        linear_scan(torch.ones(2), torch.ones(2))


def test_kernel_refuses_wrong_input(device):
    one = torch.ones(4, device=device)
    with pytest.raises(TypeError, match=r"both float32 or both float64: got torch\.float64"):
        linear_scan(one.double(), one)
    with pytest.raises(ValueError, match=r"alike: got \[3\] and \[4\]"):
        linear_scan(one[:3], one)
    with pytest.raises(ValueError, match=r"a: expected it on .* like b, got meta"):
        linear_scan(one.to("meta"), one)
    with pytest.raises(RuntimeError, match=r"no gradients: use rl_value\.linear_scan"):
        linear_scan(one, one.clone().requires_grad_())


def blocked_loop(a, b, cut):
    """The plain loop in float64, all trajectories of a grid at once."""
    a, b = a.double(), b.double()
    following, found = torch.zeros_like(b[:, 0]), []
    for t in reversed(range(b.shape[1])):
        following = torch.where(cut[:, t], b[:, t], b[:, t] + a[:, t] * following)
        found.append(following)
    return torch.stack(found[::-1], 1)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("steps", [1, 200, 5000])
@pytest.mark.parametrize("decay", [0.9405, 0.999, 1.0])
def test_full_sizes_are_accurate(columns, steps, decay):
    rows = 1_000_000 // steps
    b = torch.randn(rows, steps, columns, device="cuda", requires_grad=True)
    a = torch.full_like(b, decay).requires_grad_()
    cut = torch.rand(rows, steps, 1, device="cuda") < 0.001
    cut[:, -1] = True
    found = rl_value.linear_scan(a, b, cut, time_dim=1)
    expected = blocked_loop(a, b, cut)
    # a product of k equal factors is off by up to k roundings of 6e-8 to one side; a fifth of that
    reach = 0 if decay == 1 else min(steps, 1 / (1 - decay))
    bound = 5e-7 + 1.2e-8 * reach
    assert (found - expected).abs().max() <= bound * expected.abs().max()
    cotangent = torch.randn_like(b)
    theirs = torch.autograd.grad(expected, [a, b], cotangent.double())
    for x, y in zip(torch.autograd.grad(found, [a, b], cotangent), theirs, strict=True):
        assert (x - y).abs().max() <= 2 * bound * y.abs().max()


@pytest.mark.gpu
def test_kernel_carries_one_trajectory_through_many_chunks():
    b = torch.randn(3_000_000, device="cuda", dtype=torch.float64)
    found = linear_scan(torch.ones_like(b), b)
    torch.testing.assert_close(found, b.flip(0).cumsum(0).flip(0), atol=1e-9, rtol=1e-9)


@pytest.mark.gpu
def test_running_again_gives_the_same_bits():
    a, b = torch.rand(2, 1_000_003, device="cuda")
    a[torch.rand(1_000_003, device="cuda") < 0.005] = 0
    first = linear_scan(a, b)
    assert all(torch.equal(first, linear_scan(a, b)) for _ in range(5))
