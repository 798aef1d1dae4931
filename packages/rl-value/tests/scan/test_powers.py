import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_value import reference
from rl_value.scan.constant_decay import discounted_scan
from rl_value.scan.powers import BLOCK, Powers

factors = st.sampled_from([0.0, 1e-9, 0.3, 0.9405, 0.999, 1.0])


def by_hand(factor, cut, term, carry):
    y, after = np.empty(len(term)), carry
    for i in reversed(range(len(term))):
        after = term[i] + (0 if cut[i] else factor * after)
        y[i] = after
    return y


@given(st.integers(0, 2**31), st.sampled_from([1, 3, 128, 131]), factors, st.data())
def test_blocks_equal_the_loop_wherever_they_are_cut(seed, blocks, factor, data):
    size = blocks * BLOCK
    rows = st.lists(st.integers(0, min(size, 3 * BLOCK) - 1), max_size=12)
    cut, term = np.zeros(size, bool), np.random.default_rng(seed).standard_normal(size)
    cut[data.draw(rows)] = True
    expected, out = by_hand(factor, cut, term, 7.0), np.empty(size)
    head, is_finite = Powers(factor, out.dtype).scan(cut, term, out, 7.0)
    assert is_finite
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(head, expected[0], rtol=1e-12, atol=1e-12)


@given(st.sampled_from([np.nan, np.inf, -np.inf]), factors, st.integers(0, 95), st.integers(0, 95))
def test_powers_report_terms_that_are_not_finite_after_a_cut_too(poison, factor, row, end):
    cut, term = np.zeros(3 * BLOCK, bool), np.ones(3 * BLOCK, np.float32)
    cut[end], term[row] = True, poison
    with np.errstate(all="ignore"):
        _, is_finite = Powers(factor, term.dtype).scan(cut, term, np.empty_like(term), 0.0)
    assert not is_finite


@pytest.mark.parametrize("factor", [0.9405, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.003])
def test_float32_is_stable_over_any_length(factor, share):
    generator = torch.Generator().manual_seed(1)
    term = torch.randn(70_003, 1, generator=generator)
    cut = torch.rand(70_003, 1, generator=generator) < share
    filled = term[:, 0].numpy()

    def fill(here, _, memory):
        memory[:] = filled[here]

    found = discounted_scan(factor, (cut,), term, fill, -2)
    weight = torch.full_like(term, factor).double()
    exact = reference.linear_scan(weight, term.double(), cut)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() <= 5e-7 * exact.abs().max()


def test_products_keep_their_bits_where_torch_may_lose_some():
    term = np.random.default_rng(0).standard_normal(200 * BLOCK).astype(np.float32)
    cut, found = np.zeros(len(term), bool), []
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        try:
            out = np.empty_like(term)
            Powers(0.99, out.dtype).scan(cut, term.copy(), out, 0.0)
        finally:
            torch.set_float32_matmul_precision("highest")
        found.append(out)
    exact = by_hand(0.99, cut, term.astype(float), 0.0)
    for values in found:
        np.testing.assert_allclose(values, exact, rtol=0, atol=5e-7 * abs(exact).max())
