"""What the packages need of torch's private names: red here means that a version has changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rl_tensordict import torch_internals


def test_a_version_counts_writes_in_place():
    values = torch.zeros(3)
    before = torch_internals.version_of(values)
    values.add_(1)
    values[:2].zero_()
    assert torch_internals.version_of(values) == before + 2
    assert torch_internals.version_of(values + 1) == 0


def test_the_version_of_an_inference_tensor_is_refused():
    with torch.inference_mode():
        values = torch.zeros(3)
    with pytest.raises(RuntimeError, match="version counter"):
        torch_internals.version_of(values)


def test_parameters_are_the_live_dictionary_of_a_module():
    layer = nn.Linear(2, 3, bias=False)
    parameters = torch_internals.parameters_of(layer)
    assert list(parameters) == ["weight", "bias"]
    assert parameters["bias"] is None
    layer.weight = nn.Parameter(torch.ones(3, 2))
    assert parameters["weight"] is layer.weight


def test_buffers_and_children_are_live_dictionaries_of_a_module():
    network = nn.Sequential(nn.Linear(2, 3))
    buffers, modules = torch_internals.buffers_of(network), torch_internals.modules_of(network)
    network.register_buffer("mean", torch.zeros(5))
    network.append(nn.ReLU())
    assert list(buffers) == ["mean"]
    assert list(modules.values()) == [*network]


def test_a_module_that_is_compiled_in_place_is_known():
    layer = nn.Linear(2, 3)
    assert not torch_internals.is_compiled_in_place(layer)
    layer.compile(backend="eager")
    assert torch_internals.is_compiled_in_place(layer)


def test_transforms_are_seen_inside_of_them_only():
    seen = []

    def square(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch_internals.has_transforms())
        return x**2

    torch.func.vmap(square)(torch.ones(3))
    square(torch.ones(3))
    assert seen == [True, False]


def test_dispatch_modes_are_seen_inside_of_them_only():
    with FlopCounterMode(display=False):
        assert torch_internals.has_dispatch_modes()
    assert not torch_internals.has_dispatch_modes()


def test_an_assertion_on_the_device_raises_where_a_flag_is_false():
    torch_internals.assert_on_device(torch.tensor(True), "fine")
    with pytest.raises(RuntimeError, match="too long"):
        torch_internals.assert_on_device(torch.tensor(False), "too long")


def test_tensors_move_towards_others_by_a_weight():
    targets = [torch.zeros(2), torch.full((3,), 8.0)]
    torch_internals.lerp_all(targets, [torch.ones(2), torch.zeros(3)], 0.25)
    assert targets[0].tolist() == [0.25, 0.25]
    assert targets[1].tolist() == [6.0, 6.0, 6.0]
