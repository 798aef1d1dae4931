from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_layout import Segments
from rl_recurrent import Network
from rl_recurrent.functional import unroll
from rl_recurrent.single_step import explain_step, step_module, step_network

VARIANTS = [
    (nn.LSTM, {}),
    (nn.GRU, {}),
    (nn.LSTM, {"num_layers": 3, "proj_size": 2}),
    (nn.GRU, {"num_layers": 2, "bias": False}),
]


@pytest.mark.parametrize(("kind", "variant"), VARIANTS, ids=str)
def test_steps_equal_a_sequence(kind, variant):
    network = Network.of(kind(3, 5, dtype=torch.float64, **variant))
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    states = tuple(torch.randn(4, *s, dtype=torch.float64) for s in network.state_shapes)
    segments = Segments.from_starts(torch.zeros(4, 7, 1, dtype=torch.bool))
    out, ends = unroll(x, segments, states, network)
    after = states
    for t in range(7):
        step, after = step_network(x[:, t], after, network)
        assert_close(step, out[:, t])
    assert_close(after, ends)


def test_dropout_applies_between_layers_of_a_step():
    module = nn.GRU(3, 200, num_layers=2, dropout=0.5)
    x, states = torch.randn(2, 3), (torch.randn(2, 2, 200),)
    one, other = (step_network(x, states, Network.of(module))[0] for _ in range(2))
    assert not torch.equal(one, other)
    module.eval()
    one, other = (step_network(x, states, Network.of(module))[0] for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_short_path_of_one_layer_equals_the_general_one(kind, bias):
    module, x = kind(3, 5, bias=bias), torch.randn(4, 3)
    network = Network.of(module)
    states = tuple(torch.randn(4, *shape) for shape in network.state_shapes)
    wanted = step_network(x, states, network)
    assert_close(step_module(module, x, states), wanted, rtol=0, atol=0)
    assert explain_step(module) == "one step: one call of torch's cell"
    nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    assert explain_step(module) == "one step: layer by layer (parameters that are computed)"
    assert_close(step_module(module, x, states), wanted)
    with torch.no_grad():
        module.parametrizations.weight_hh_l0.original0.mul_(2)
    assert not torch.allclose(step_module(module, x, states)[0], wanted[0])
