"""Modules that change after their calls were listed."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_tensordict import ModuleCalls, StepSequence, TensorStep, leaves

B = ("b",)


def batch():
    return TensorDict({"a": torch.arange(6.0).view(2, 3)}, [2])


def layer(source="a", target="b"):
    return TensorDictModule(nn.Linear(3, 3), [source], [target])


class Own(TensorStep):
    in_keys, out_keys = ("a",), ("b",)

    def step(self, a):
        return (a + 3,)


class Sequence(StepSequence, TensorDictSequential):
    pass


def test_calls_are_stale_after_a_part_was_replaced_or_a_hook_added():
    module = TensorDictSequential(TensorDictSequential(layer()), layer("b", "c"))
    changes = [
        lambda: module.module[0].module.append(layer("b", "b")),
        lambda: setattr(module.module[1], "module", nn.Linear(3, 3)),
        lambda: module.module.__setitem__(1, layer("b", "c")),
        lambda: module.module[0].module[0].register_forward_hook(lambda *_: None),
    ]
    for change in changes:
        calls = ModuleCalls(module)
        assert not calls.is_stale()
        change()
        assert calls.is_stale()
    found = ModuleCalls(module)
    assert not found.is_flat
    assert not found.is_stale()  # the part that has a hook is called as it is


class Narrowing(Own):
    is_narrow = False

    def takes_tensors(self):
        return not self.is_narrow


CHANGES = {
    "function": (
        lambda: TensorDictModule(lambda a: a + 1, ["a"], ["b"]),
        lambda module: setattr(module, "module", torch.neg),
    ),
    "network": (layer, lambda module: setattr(module, "module", nn.Identity())),
    "inputs": (layer, lambda module: setattr(module, "in_keys", ["other"])),
    "outputs": (layer, lambda module: setattr(module, "out_keys", ["other"])),
    "outputs in place": (layer, lambda module: module.out_keys.__setitem__(0, "other")),
    "selected outputs": (layer, lambda module: module.select_out_keys("b")),
    "option": (layer, lambda module: setattr(module, "inplace", False)),
    "own forward": (layer, lambda module: setattr(module, "forward", torch.neg)),
    "compilation": (layer, lambda module: module.compile(backend="eager")),
    "tensors": (Narrowing, lambda module: setattr(module, "is_narrow", True)),
}


@pytest.mark.parametrize("is_inside", [False, True], ids=["module", "part"])
@pytest.mark.parametrize("name", CHANGES)
def test_calls_are_stale_after_keys_or_options_of_a_part_were_changed(name, is_inside):
    make, change = CHANGES[name]
    part = make()
    calls = ModuleCalls(TensorDictSequential(part) if is_inside else part)
    assert not calls.is_stale()
    change(part)
    assert calls.is_stale()


class Two(Own):
    """Writes a second entry on request."""

    is_wide = False

    @property
    def out_keys(self):
        return ["b", "c"] if self.is_wide else ["b"]

    def step(self, a):
        return (a + 3, -a) if self.is_wide else (a + 3,)


def test_a_sequence_writes_what_its_parts_write_from_now_on():
    part = Two()
    module = Sequence(layer("a", "hidden"), part)
    assert set(module(batch()).keys()) == {"a", "hidden", "b"}
    part.is_wide = True
    assert module(batch())["c"].equal(-batch()["a"])


def test_training_and_weights_leave_calls_as_they_are():
    module = TensorDictSequential(layer(), Own())
    calls = ModuleCalls(module)
    module.eval().double().train()
    module.load_state_dict(layer_state(module))
    assert not calls.is_stale()


def layer_state(module):
    return {name: value + 1 for name, value in module.state_dict().items()}


def test_calls_use_parameters_that_are_put_in_later():
    module = layer()
    calls, given = ModuleCalls(module), dict(leaves(batch()))
    zeros = TensorDict.from_module(module).apply(torch.zeros_like)
    with zeros.to_module(module):
        assert calls.run(dict(given))[B].eq(0).all()
    assert not calls.is_stale()
    assert calls.run(dict(given))[B].ne(0).any()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_a_sequence_lists_calls_of_its_own(duplicate):
    module, a = Sequence(layer(), Own()), batch()["a"]
    before = module.step(a)[0]
    other = duplicate(module)
    other.module[0].module.weight.data.zero_()
    other.module[0].module.bias.data.zero_()
    assert module.step(a)[0].equal(before)
    assert other(batch())["b"].equal(a + 3)
    other.module[1] = layer()
    assert other.step(a)[0].equal(other.module[1].module(a))
