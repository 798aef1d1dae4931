import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_policies import MLP
from rl_policies.networks.mlp import hidden_sizes


def kinds(net):
    return [type(layer).__name__ for layer in net]


def test_layers_come_in_the_order_of_the_equation():
    net = MLP(3, 2, num_cells=[5, 7], norm_class=nn.LayerNorm, dropout=0.1)
    hidden = ["Linear", "LayerNorm", "Tanh", "Dropout"]
    assert kinds(net) == [*hidden, *hidden, "Linear"]
    assert [layer.weight.shape for layer in net if isinstance(layer, nn.Linear)] == [
        (5, 3),
        (7, 5),
        (2, 7),
    ]


def test_output_by_hand():
    net = MLP(2, 1, depth=1, num_cells=3, activation_class=nn.ReLU)
    x = torch.randn(4, 2)
    hidden = (x @ net[0].weight.T + net[0].bias).clamp(min=0)
    assert_close(net(x), hidden @ net[2].weight.T + net[2].bias)


def test_depth_zero_is_linear():
    assert kinds(MLP(3, 2, depth=0)) == ["Linear"]


def test_defaults_are_three_layers_of_32():
    assert hidden_sizes(None, None) == [32, 32, 32]
    assert hidden_sizes(2, None) == [32, 32]


def test_input_size_follows_several_inputs():
    net = MLP(out_features=1, num_cells=[5])
    out = net(torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.bool))
    assert out.shape == (4, 1)
    assert net[0].weight.shape == (5, 5)


def test_output_has_the_requested_shape():
    assert MLP(3, (2, 5), depth=1)(torch.zeros(4, 3)).shape == (4, 2, 5)


def test_options_reach_the_layers():
    net = MLP(
        3,
        2,
        depth=1,
        bias_last_layer=False,
        layer_kwargs={"dtype": torch.float64},
        activation_class=nn.LeakyReLU,
        activation_kwargs={"negative_slope": 0.5},
        activate_last_layer=True,
        device="cpu",
    )
    assert kinds(net) == ["Linear", "LeakyReLU", "Linear", "LeakyReLU"]
    assert (net[0].bias is None, net[2].bias is None) == (False, True)
    assert net[2].weight.dtype == torch.float64
    assert net[3].negative_slope == 0.5


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "out_features is missing"),
        ({"out_features": 1, "depth": 3, "num_cells": [4, 4]}, "depth is 3 .* lists 2"),
        ({"out_features": 1, "depth": -1}, "got -1"),
        ({"out_features": 1, "num_cells": [4, 0]}, r"got \[4, 0\]"),
        ({"out_features": 1, "layer_class": nn.Bilinear}, "in_features is needed"),
    ],
)
def test_wrong_sizes_raise(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MLP(**kwargs)
