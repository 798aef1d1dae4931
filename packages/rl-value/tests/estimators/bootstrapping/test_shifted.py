"""Estimates by one sequence of a fixed length."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.testing import EndKind, batches, environments, trajectories
from rl_value import GAE

GAMMA, LMBDA = 0.9, 0.7

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)


@pytest.mark.parametrize(("budget", "lost"), [(1, {0: [4], 1: []}), (2, {0: [], 1: []})])
def test_shifted_leaves_out_what_does_not_fit(budget, lost, critic, prepared):
    batch = prepared(environments(2, 5, [2, 5], [EndKind.TRUNCATED, EndKind.TERMINATED]))
    # row 0: truncated after step 1, then cut: 7 slots; row 1: terminated after step 4
    assert batch["next", "done"][..., 0].tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    found = GAE(shifted=True, shifted_budget=budget, **settings)(batch.clone())
    valid = torch.ones(2, 5, dtype=torch.bool)
    for row, steps in lost.items():
        valid[row, steps] = False
    assert torch.equal(found["shifted_valid"], valid)
    assert found["advantage"][~valid].eq(0).all()
    assert found["value_target"][~valid].eq(0).all()
    cut = batch.clone()
    cut[keys.MASK] = valid  # what is left is estimated as if the rest were not there
    expected = GAE(**settings)(cut)
    torch.testing.assert_close(found["advantage"], expected["advantage"])


@given(batches(), st.integers(1, 4))
def test_shifted_is_exact_wherever_it_is_valid(critic, prepared, batch, budget):
    batch = prepared(batch)
    seen = []
    net = critic()
    net.register_forward_hook(lambda _, args, out: seen.append(len(out)))
    settings = {"gamma": GAMMA, "lmbda": LMBDA}
    found = GAE(shifted=True, shifted_budget=budget, value_network=net, **settings)(batch.clone())
    valid = found["shifted_valid"]
    rows, steps = batch.numel() // batch.shape[-1], batch.shape[-1]
    has_steps = bool(batch.get(keys.MASK, torch.ones(1, dtype=torch.bool)).any())
    assert seen[0] == (rows * (steps + budget) if has_steps else 1)  # one blank row where none is
    kept = batch.clone().set(keys.MASK, valid)
    expected = GAE(value_network=critic(), **settings)(kept)
    torch.testing.assert_close(found["advantage"][valid], expected["advantage"][valid])
    assert not found["advantage"][~valid].any()


def test_a_mask_of_an_earlier_call_is_refreshed(critic, prepared):
    batch = prepared(trajectories([2, 3], EndKind.TRUNCATED))
    settings = {"gamma": 0.9, "lmbda": 0.9, "value_network": critic()}
    assert not GAE(shifted=True, **settings)(batch)["shifted_valid"].all()
    assert GAE(**settings)(batch)["shifted_valid"].all()
