import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_value import reference
from rl_value.returns.discounted import discounted_scan
from rl_value.returns.powers import BLOCK, GROUP, Powers

factors = st.sampled_from([0.0, 1e-9, 0.3, 0.9405, 0.999, 1.0])


def by_hand(factor, cut, term, carry):
    y, after = np.empty(len(term)), carry
    for i in reversed(range(len(term))):
        after = term[i] + (0 if cut[i] else factor * after)
        y[i] = after
    return y


@given(st.integers(0, 2**31), st.sampled_from([1, 3, GROUP, GROUP + 2]), factors, st.data())
def test_blocks_equal_the_loop_wherever_they_are_cut(seed, blocks, factor, data):
    size = blocks * BLOCK
    rows = st.lists(st.integers(0, min(size, 3 * BLOCK) - 1), max_size=12)
    cut, term = np.zeros(size, bool), np.random.default_rng(seed).standard_normal(size)
    cut[data.draw(rows)] = True
    expected, out = by_hand(factor, cut, term, 7.0), np.empty(size)
    head = Powers(factor, out.dtype).scan(cut, term, out, 7.0)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(head, expected[0], rtol=1e-12, atol=1e-12)


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
