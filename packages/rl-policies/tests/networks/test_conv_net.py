from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_policies import MLP, ConvNet
from rl_policies.networks.conv_net import per_layer


def kinds(net):
    return [type(layer).__name__ for layer in net]


def images(*rows, size=(3, 11, 9)):
    torch.manual_seed(0)
    return torch.randn(*rows, *size)


def test_layers_come_in_the_order_of_the_equation():
    net = ConvNet(3, num_cells=[5, 7], norm_class=nn.BatchNorm2d, activation_class=nn.ReLU)
    layer = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds(net) == [*layer, *layer, "Flatten"]
    assert [net[0].weight.shape, net[3].weight.shape] == [(5, 3, 3, 3), (7, 5, 3, 3)]
    assert (net.in_features, net.out_features) == (3, 7)


def test_output_by_hand():
    net = ConvNet(3, num_cells=[5, 7], kernel_sizes=[4, (2, 3)], strides=[1, 2], paddings=[1, 0])
    x = images(6)
    hidden = nn.functional.conv2d(x, net[0].weight, net[0].bias, 1, 1)
    hidden = nn.functional.elu(hidden)
    hidden = nn.functional.elu(nn.functional.conv2d(hidden, net[2].weight, net[2].bias, 2))
    assert_close(net(x), hidden.flatten(1))


@pytest.mark.parametrize("rows", [(), (2,), (2, 4), (2, 4, 3), (0,), (2, 0)])
@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d])
def test_conv_net_takes_any_batch_dimensions(rows, norm):
    net = ConvNet(3, num_cells=[5, 7], norm_class=norm).eval()
    x = images(*rows)
    found = net(x)
    assert found.shape == (*rows, 7 * 7 * 5)
    flat = x.reshape(-1, 3, 11, 9) if x.numel() else x.reshape(0, 3, 11, 9)
    wanted = torch.stack([net(one) for one in flat]) if len(flat) else torch.empty(0, 245)
    assert_close(found, wanted.reshape(found.shape))


def test_channels_follow_the_first_image():
    net = ConvNet()
    assert net(images(2)).shape == (2, 32 * 5 * 3)
    assert kinds(net) == ["Conv2d", "ELU"] * 3 + ["Flatten"]
    assert net[0].in_channels == 3
    with pytest.raises(ValueError, match=r"\[\*B, 3, H, W\]: got shape \(2, 4, 11, 9\)"):
        net(images(2, size=(4, 11, 9)))


def test_conv_net_may_return_images_or_squeezed_images():
    x = images(2, 4)
    assert ConvNet(3, 2, 5, aggregator_class=None)(x).shape == (2, 4, 5, 7, 5)
    pooled = ConvNet(
        3,
        num_cells=[5],
        aggregator_class=nn.AdaptiveAvgPool2d,
        aggregator_kwargs={"output_size": 1},
        squeeze_output=True,
    )
    assert pooled(x).shape == (2, 4, 5)
    open_ = ConvNet(3, num_cells=[5], aggregator_class=None, squeeze_output=True)
    with pytest.raises(ValueError, match=r"height and width of 1: got \(2, 4, 5, 9, 7\)"):
        open_(x)


def test_options_reach_their_layers():
    net = ConvNet(
        3,
        2,
        activation_class=nn.LeakyReLU,
        activation_kwargs={"negative_slope": 0.5},
        norm_class=nn.GroupNorm,
        norm_kwargs={"num_groups": 4, "num_channels": 32},
        bias_last_layer=False,
        device="cpu",
    )
    assert net[2].negative_slope == 0.5
    assert net[1].num_groups == 4
    assert net[0].bias is not None
    assert net[3].bias is None


def test_conv_net_appends_a_head():
    net = nn.Sequential(ConvNet(num_cells=[4, 8], strides=[2, 1]), MLP(out_features=5))
    out = net(images(2, 4))
    out.sum().backward()
    assert out.shape == (2, 4, 5)
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (images(2).byte(), TypeError, "got torch.uint8. ToTensorImage"),
        (torch.zeros(11, 9), ValueError, r"\[\*B, C, H, W\]: got shape \(11, 9\)"),
        (images(2, size=(11, 9, 3)), ValueError, "Channels come before height and width"),
        (images(2, size=(3, 6, 9)), ValueError, r"\(6, 9\) are too small"),
    ],
)
def test_images_of_another_layout_raise(given, error, message):
    with pytest.raises(error, match=message):
        ConvNet(3)(given)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"depth": 2, "num_cells": [3]}, "{'num_cells': 1, 'depth': 2}"),
        ({"num_cells": [3, 4], "strides": [1]}, "{'num_cells': 2, 'strides': 1}"),
        ({"depth": 0}, "at least one layer: got 0"),
        ({"num_cells": [3, 0]}, "num_cells must be at least 1"),
        ({"kernel_sizes": [(3, 0)]}, "kernel_sizes must be at least 1"),
        ({"paddings": -1}, "paddings must be at least 0"),
    ],
)
def test_wrong_layers_raise(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ConvNet(3, **kwargs)


def test_default_is_three_layers():
    assert per_layer(None, {"a": 1, "b": 2}) == [[1, 1, 1], [2, 2, 2]]
    assert per_layer(2, {"a": 1, "b": [2, (3, 4)]}) == [[1, 1], [2, (3, 4)]]
