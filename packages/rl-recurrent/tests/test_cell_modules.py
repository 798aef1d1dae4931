from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_recurrent import GRUCell, LSTMCell

PAIRS = [(LSTMCell, nn.LSTMCell), (GRUCell, nn.GRUCell)]


@pytest.mark.parametrize(("ours", "torchs"), PAIRS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (4,)])
def test_cells_equal_those_of_torch(ours, torchs, bias, batch):
    one, other = ours(3, 5, bias=bias), torchs(3, 5, bias=bias)
    other.load_state_dict(one.state_dict())
    x, state = torch.randn(*batch, 3), torch.randn(*batch, 5)
    states = (state, state.flip(-1)) if ours is LSTMCell else state
    assert_close(one(x, states), other(x, states))
    assert_close(one(x), other(x))


@pytest.mark.parametrize("kind", [LSTMCell, GRUCell])
def test_cells_run_under_vmap(kind):
    cell, x = kind(3, 5), torch.randn(2, 4, 3)
    mapped, plain = torch.vmap(cell)(x), [cell(each) for each in x]
    if kind is LSTMCell:
        mapped, plain = mapped[0], [h for h, _ in plain]
    assert_close(mapped, torch.stack(plain))


@pytest.mark.parametrize("kind", [LSTMCell, GRUCell])
def test_cell_inputs_of_another_shape_raise(kind):
    cell = kind(3, 5)
    for x in (torch.zeros(2, 4, 3), torch.zeros(4)):
        with pytest.raises(ValueError, match=r"inputs \[3\] or \[B, 3\]"):
            cell(x)
    state = torch.zeros(3, 5)
    with pytest.raises(ValueError, match=r"state of shape \[2, 5\]: got \[3, 5\]"):
        cell(torch.zeros(2, 3), (state, state) if kind is LSTMCell else state)
