import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential, set_skip_existing
from torch import nn

from rl_layout import recurrent_mode
from rl_value.estimators.bootstrapping.next_values import outputs_from
from rl_value.networks import output_of


def batch():
    return TensorDict({"x": torch.arange(6.0).view(3, 2), "y": torch.full((3, 2), -1.0)}, [3])


def doubled():
    return TensorDictModule(lambda x: x * 2, ["x"], ["y"])


def sequence():
    split = TensorDictModule(lambda x: (x + 1, x - 1), ["x"], ["more", ("less", "still")])
    joined = TensorDictModule(lambda a, b: a * b, ["more", ("less", "still")], ["y"])
    return TensorDictSequential(split, joined)


@pytest.mark.parametrize("make", [doubled, sequence])
def test_output_of_a_stock_network_is_read_and_the_batch_is_unchanged(make):
    seen, network = batch(), make()
    expected = network(batch())["y"]
    assert output_of(network, seen, "y").equal(expected)
    assert seen["y"].eq(-1).all()
    assert list(seen.keys()) == ["x", "y"]


@pytest.mark.parametrize("make", [doubled, sequence, lambda: with_hook(doubled(), [])])
def test_tensors_give_what_the_batch_of_them_gives(make):
    network, seen = make(), batch()
    given = {("x",): seen["x"]}
    (found,) = outputs_from(network, [(given, 3)], "y")
    assert found.equal(network(batch())["y"])
    assert list(given) == [("x",)]
    with pytest.raises(KeyError, match="'z' is missing"):
        outputs_from(network, [(given, 3)], "z")


def test_the_network_is_called_once_for_each_of_its_inputs_in_recurrent_mode():
    modes = []
    net = TensorDictModule(lambda x: (modes.append(recurrent_mode()), x * 2)[1], ["x"], ["y"])
    one, three = {("x",): torch.ones(1, 1)}, {("x",): torch.full((3, 1), 3.0)}
    first, second = outputs_from(net, [(one, 1), (three, 3)], "y")
    assert first.tolist() == [[2.0]]
    assert second.tolist() == [[6.0], [6.0], [6.0]]
    assert modes == [True, True]


def test_parameters_take_the_place_of_the_networks_own():
    net = TensorDictModule(nn.Linear(2, 2), ["x"], ["y"])
    params = TensorDict.from_module(net).clone().zero_()
    (found,) = outputs_from(net, [({("x",): batch()["x"]}, 3)], "y", params)
    assert found.eq(0).all()
    assert not output_of(net, batch(), "y").eq(0).all()


def with_hook(network, calls):
    network.register_forward_hook(lambda *_: calls.append(1))
    return network


def test_hooks_of_a_network_are_run():
    network, calls = doubled(), []
    network.register_forward_hook(lambda *_: calls.append(1))
    output_of(network, batch(), "y")
    assert calls == [1]


def test_a_forward_of_its_own_is_called():
    class Shifted(TensorDictModule):
        def forward(self, tensordict):
            return tensordict.set("y", tensordict["x"] + 100)

    found = output_of(Shifted(nn.Identity(), ["x"], ["y"]), batch(), "y")
    assert found.equal(batch()["x"] + 100)


def test_settings_of_a_module_are_kept():
    network = TensorDictModule(nn.Linear(2, 2), ["x"], ["y"], method="extra_repr")
    with pytest.raises(Exception, match="extra_repr"):
        output_of(network, batch(), "y")
    by_name = TensorDictModule(lambda *, value: value * 3, {"value": "x"}, ["y"])
    assert output_of(by_name, batch(), "y").equal(batch()["x"] * 3)


def test_outputs_by_name_are_found():
    network = TensorDictModule(lambda x: {"z": x, "y": x * 5}, ["x"], ["y", "z"])
    assert output_of(network, batch(), "y").equal(batch()["x"] * 5)


def test_existing_outputs_are_skipped_on_request():
    with set_skip_existing(True):
        found = output_of(doubled(), batch(), "y")
    assert found.eq(-1).all()


def test_a_missing_input_or_output_is_named():
    with pytest.raises(KeyError, match="nothing"):
        output_of(TensorDictModule(lambda x: x * 2, ["nothing"], ["y"]), batch(), "y")
    with pytest.raises(KeyError, match="'z' is missing"):
        output_of(doubled(), batch(), "z")
