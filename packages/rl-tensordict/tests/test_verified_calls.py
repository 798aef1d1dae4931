import sys

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn
from torch.nn.utils import parametrize as parametrizations
from torch.nn.utils import prune as pruning

from rl_tensordict import VerifiedCalls, leaves

VALUES = {("observation",): torch.linspace(-1, 1, 6).reshape(2, 3)}
ROWS = torch.Size([2])


def linear():
    return TensorDictModule(nn.Linear(3, 5), ["observation"], ["logits"])


def sampling():
    return ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical
    )


def through_tensordict(policy):
    made = policy(TensorDict({"observation": VALUES["observation",].clone()}, ROWS))
    return {key: leaf for key, leaf in leaves(made) if key not in VALUES}


class Steps(TensorDictModuleBase):
    has_tensor_step = True
    in_keys, out_keys = ["observation"], ["action", ("next", "hidden")]

    def step(self, seen):
        return seen + 1, seen * 2

    def forward(self, tensordict):
        action, hidden = self.step(tensordict["observation"])
        return tensordict.set("action", action).set(("next", "hidden"), hidden)


def drawn():
    return TensorDictSequential(linear(), sampling())


POLICIES = {
    "module": linear,
    "sequence": lambda: TensorDictSequential(linear(), linear()),
    "nested sequence": lambda: TensorDictSequential(TensorDictSequential(linear())),
    "step": Steps,
    "sampling": drawn,
    "callable": lambda: lambda td: td.set("action", td["observation"] + 1),
    "dropped output": lambda: TensorDictModule(
        lambda seen: (seen, seen + 1), ["observation"], ["_", "action"]
    ),
    "keyword arguments": lambda: TensorDictModule(
        lambda *, seen: seen + 1, {"seen": "observation"}, ["action"]
    ),
    "dictionary": lambda: TensorDictModule(
        lambda seen: {"action": seen + 1}, ["observation"], ["action"]
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_calls_do_what_the_policy_does(name):
    policy = POLICIES[name]()
    with set_interaction_type(InteractionType.RANDOM):
        torch.manual_seed(7)
        expected = [through_tensordict(policy) for _ in range(3)]
        torch.manual_seed(7)
        calls = VerifiedCalls(policy)
        found = [calls(VALUES, ROWS) for _ in range(3)]
    assert list(VALUES) == [("observation",)]
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "flat"), [("sequence", True), ("step", True), ("sampling", False), ("callable", False)]
)
def test_stats_say_how_the_policy_is_called(name, flat):
    calls = VerifiedCalls(POLICIES[name]())
    calls(VALUES, ROWS)
    assert calls.stats()["flat"] is flat
    assert calls.stats()["verified"]
    assert calls.stats()["fallback"] == ""


def test_stock_modules_are_called_without_a_tensordict():
    calls = VerifiedCalls(TensorDictSequential(linear(), linear()))
    assert calls.in_keys == [("observation",)]
    assert calls.out_keys == [("logits",)]


class Liar(Steps):
    def forward(self, tensordict):
        return super().forward(tensordict).set("action", tensordict["observation"] - 1)


def test_calls_that_differ_fall_back_and_say_so():
    policy = Liar()
    calls = VerifiedCalls(policy)
    found = [calls(VALUES, ROWS)["action",] for _ in range(2)]
    assert calls.stats()["fallback"] == "'action' has other values"
    assert torch.equal(*found)
    assert torch.equal(found[0], through_tensordict(policy)["action",])


def test_hooks_are_not_skipped():
    module = linear()
    module.register_forward_hook(lambda mod, args, out: out.set("hooked", out["logits"]))
    calls = VerifiedCalls(module)
    assert ("hooked",) in calls(VALUES, ROWS)
    assert not calls.is_flat


def test_a_callable_with_state_of_its_own_is_called_once_a_step():
    actions = iter([torch.zeros(1), torch.ones(1)])
    calls = VerifiedCalls(lambda td: td.set("action", next(actions)))
    made = [
        calls({("observation",): torch.zeros(3)}, torch.Size([]))[("action",)] for _ in range(2)
    ]
    assert [action.item() for action in made] == [0.0, 1.0]


class Listed(Steps):
    """A module of another package, which says what its step calls."""

    listed = 0

    def step_calls(self):
        self.listed += 1
        return [
            (lambda seen: seen + 1, ["observation"], ["action"]),
            (lambda seen: (seen * 2, seen), ["observation"], [("next", "hidden"), "_"]),
        ]


@pytest.mark.parametrize("make", [linear, Steps, Listed])
def test_bound_calls_write_what_the_calls_return(make):
    calls = VerifiedCalls(make())
    assert calls.bound() is None  # not before they have been compared with the policy
    calls(VALUES, ROWS)
    made, expected = calls.bound()(dict(VALUES)), calls(VALUES, ROWS)
    assert all(torch.equal(made[key], value) for key, value in expected.items())
    assert list(expected) == calls.out_keys


@pytest.mark.parametrize("make", [drawn, lambda: lambda td: td])
def test_calls_on_a_tensordict_are_not_bound(make):
    calls = VerifiedCalls(make())
    calls(VALUES, ROWS)
    assert calls.bound() is None
    assert calls.in_keys is calls.out_keys is None
    assert "can only be called on a tensordict" in calls.stats()["reason"]


def test_the_calls_of_a_foreign_step_are_listed_where_they_are_bound():
    policy = Listed()
    calls = VerifiedCalls(policy)
    calls(VALUES, ROWS)
    calls(VALUES, ROWS)
    assert policy.listed == 0
    run = calls.bound()
    run(dict(VALUES))
    run(dict(VALUES))
    assert policy.listed == 1


class Changing(Steps):
    """Lists its own step, or another call."""

    others = ()

    def step_calls(self):
        return [*self.others] or [(self.step, self.in_keys, self.out_keys)]


def test_bound_calls_stay_the_same_until_what_a_module_lists_changes():
    policy = Changing()
    calls = VerifiedCalls(policy)
    calls(VALUES, ROWS)
    run = calls.bound()
    assert calls.bound() is run
    policy.others = [(lambda seen: seen - 3, ["observation"], ["action"])]
    found = calls.bound()(dict(VALUES))["action",]
    assert torch.equal(found, VALUES["observation",] - 3)


def test_calls_are_listed_and_verified_anew_after_a_part_was_replaced():
    policy = TensorDictSequential(linear())
    calls = VerifiedCalls(policy)
    before = calls(VALUES, ROWS)["logits",]
    calls.refresh()
    assert calls.is_verified
    policy.module[0] = linear()
    calls.refresh()
    assert not calls.is_verified
    found = calls(VALUES, ROWS)["logits",]
    assert torch.equal(found, through_tensordict(policy)["logits",])
    assert not torch.equal(found, before)
    policy.register_forward_hook(lambda *_: None)
    calls.refresh()
    assert not calls.is_flat


def test_a_policy_that_fell_back_stays_as_it_is():
    calls = VerifiedCalls(Liar())
    calls(VALUES, ROWS)
    calls.refresh()
    assert calls.is_verified
    assert calls.stats()["fallback"] == calls.stats()["reason"] != ""


@pytest.mark.parametrize("make", [linear, drawn])
def test_each_step_is_one_range_of_the_profiler(make):
    calls = VerifiedCalls(make(), profile="policy of a test")
    with torch.profiler.profile() as found:
        calls(VALUES, ROWS)
        calls(VALUES, ROWS)
        (calls.bound() or (lambda values: calls(values, ROWS)))(dict(VALUES))
        made = calls.on_tensordict()(TensorDict({"observation": VALUES["observation",]}, ROWS))
    assert [event.name for event in found.events()].count("policy of a test") == 4
    assert "logits" in made
    assert VerifiedCalls(calls.policy).on_tensordict() is calls.policy


def test_bound_calls_follow_the_range_that_is_set_later():
    calls = VerifiedCalls(linear())
    calls(VALUES, ROWS)
    calls.bound()
    calls.profile = "range of later"
    with torch.profiler.profile() as found:
        calls.bound()(dict(VALUES))
    assert [event.name for event in found.events()].count("range of later") == 1


def test_calls_tell_whether_two_of_them_may_write_one_entry():
    def cell():
        return TensorDictModule(lambda x: x, ["observation"], [("next", "h")])

    assert not VerifiedCalls(TensorDictSequential(cell(), linear(), linear())).may_share("next")
    assert VerifiedCalls(TensorDictSequential(cell(), linear(), cell())).may_share("next")
    assert VerifiedCalls(drawn()).may_share("next")


def deep():
    inner = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), inner, nn.Linear(5, 2))


def bound_network(network):
    calls = VerifiedCalls(TensorDictModule(network, ["observation"], ["action"]))
    calls(VALUES, ROWS)
    return calls


def action_of(calls):
    run = calls.bound()
    return run(dict(VALUES))["action",]


def calls_of_modules(calls):
    """How many modules are called as such, by the one place where torch calls them."""
    run, found = calls.bound(), []

    def note(frame, event, _):
        if event == "call" and frame.f_code is nn.Module.__call__.__code__:
            found.append(frame)

    sys.setprofile(note)
    try:
        run(dict(VALUES))
    finally:
        sys.setprofile(None)
    return len(found)


def lookups_of_parameters(calls):
    """How many parameters are looked for by torch's `__getattr__` of modules."""
    run, found = calls.bound(), []

    def note(frame, event, _):
        if event == "call" and frame.f_code is nn.Module.__getattr__.__code__:
            found.append(frame)

    sys.setprofile(note)
    try:
        run(dict(VALUES))
    finally:
        sys.setprofile(None)
    return len(found)


class Marked(nn.Sequential):
    runs_layers = True


class Doubles(nn.Sequential):
    def forward(self, seen):
        return 2 * super().forward(seen)


@pytest.mark.parametrize("kind", [nn.Sequential, Marked])
def test_layers_of_a_plain_network_are_called_without_what_torch_does_around_a_call(kind):
    network = kind(*deep())
    calls = bound_network(network)
    assert calls_of_modules(calls) == 0
    assert lookups_of_parameters(calls) == 0
    assert torch.equal(action_of(calls), network(VALUES["observation",]))
    assert calls.bound() is calls.bound()


def test_a_network_with_a_forward_of_its_own_is_called_as_it_is():
    network = Doubles(nn.Linear(3, 2))
    calls = bound_network(network)
    assert calls_of_modules(calls) > 0
    assert torch.equal(action_of(calls), network(VALUES["observation",]))


def add_hook(network):
    return network[2][0].register_forward_hook(lambda *given: given[-1] + 1)


def add_pre_hook(network):
    return network.register_forward_pre_hook(lambda _, given: (given[0] + 1,))


def add_global_hook(_):
    return nn.modules.module.register_module_forward_hook(lambda *given: given[-1] + 1)


@pytest.mark.parametrize("add", [add_hook, add_pre_hook, add_global_hook])
def test_hooks_that_are_added_later_are_called_from_the_next_binding_on(add):
    network = deep()
    calls = bound_network(network)
    before = action_of(calls)
    handle = add(network)
    try:
        watched = action_of(calls)
        assert torch.equal(watched, network(VALUES["observation",]))
        assert not torch.equal(watched, before)
    finally:
        handle.remove()
    assert torch.equal(action_of(calls), before)


class Negative(nn.Module):
    def forward(self, weight):
        return -weight


def replace_layer(network):
    network[2][0] = nn.Linear(5, 5)


def add_layer(network):
    network.append(nn.Softmax(-1))


def replace_forward(network):
    network[0].forward = lambda seen: seen.new_ones(2, 5)


def parametrize(network):
    parametrizations.register_parametrization(network[0], "weight", Negative())


def prune(network):
    pruning.random_unstructured(network[2][0], "weight", amount=3)


@pytest.mark.parametrize("change", [replace_layer, add_layer, replace_forward, parametrize, prune])
def test_layers_that_change_are_called_as_they_are_from_the_next_binding_on(change):
    network = deep()
    calls = bound_network(network)
    before = action_of(calls)
    change(network)
    assert torch.equal(action_of(calls), network(VALUES["observation",]))
    assert not torch.equal(action_of(calls), before)


def fill(network):
    with torch.no_grad():
        network[0].weight.fill_(0.3)


def replace_weight(network):
    network[0].weight = nn.Parameter(torch.full((5, 3), 0.3))


def remove_bias(network):
    network[0].register_parameter("bias", None)


@pytest.mark.parametrize("change", [fill, replace_weight, remove_bias, parametrize])
def test_new_weights_act_at_once(change):
    network = deep()
    calls = bound_network(network)
    run = calls.bound()
    change(network)
    assert torch.equal(run(dict(VALUES))["action",], network(VALUES["observation",]))
