"""The calls of modules give the numbers of the modules themselves, case by case."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_skip_existing,
)
from torch import nn

from rl_tensordict import ModuleCalls, StepSequence, TensorStep, leaves
from rl_tensordict.module_calls import run_steps

A, B = ("a",), ("b",)


def batch():
    return TensorDict({"a": torch.arange(6.0).view(2, 3)}, [2])


def layer(source="a", target="b", sizes=(3, 3)):
    return TensorDictModule(nn.Linear(*sizes), [source], [target])


class Steps(TensorDictModuleBase):
    """A module of another package, which offers `step`."""

    has_tensor_step = True
    in_keys, out_keys = ("a",), ("b", ("next", "c"))

    def step(self, a):
        return a + 1, a * 2

    def forward(self, tensordict):
        b, c = self.step(tensordict["a"])
        return tensordict.set("b", b).set(("next", "c"), c)


class Own(TensorStep):
    in_keys, out_keys = ("a",), ("b",)

    def step(self, a):
        return (a + 3,)


class Sequence(StepSequence, TensorDictSequential):
    pass


class Narrow(Own):
    def takes_tensors(self):
        return False

    def forward(self, tensordict):
        return tensordict.set("b", tensordict["a"])


class Opaque(TensorDictModuleBase):
    in_keys, out_keys = ("a",), ("b",)

    def forward(self, tensordict):
        return tensordict.set("b", 2 * tensordict["a"])


class OtherCall(TensorDictModule):
    def _call_module(self, tensors, **kwargs):
        return super()._call_module(tensors, **kwargs) + 1


class OtherRun(TensorDictSequential):
    def _run_module(self, module, tensordict, **kwargs):
        return super()._run_module(module, tensordict, **kwargs).set("extra", tensordict["a"])


class CalledOtherwise(TensorDictModule):
    def __call__(self, tensordict):
        return super().__call__(tensordict).set("extra", tensordict["a"])


def hooked(kind):
    module = layer()
    getattr(module, f"register_{kind}")(lambda *_: None)
    return module


def selected():
    return TensorDictSequential(layer(), layer("b", "c"), selected_out_keys=["c"])


def compiled_as_a_whole():
    module = layer()
    module.compile(backend="eager")
    return module


FLAT = {
    "module": layer,
    "function": lambda: TensorDictModule(lambda a: a + 1, ["a"], ["b"]),
    "nested keys": lambda: TensorDictModule(
        lambda a: (a, -a), ["a"], [("n", "b"), ("n", "m", "c")]
    ),
    "dropped output": lambda: TensorDictModule(lambda a: (a, a + 1), ["a"], ["_", "b"]),
    "dictionary": lambda: TensorDictModule(lambda a: {"c": a, "b": a + 1}, ["a"], ["b", "c"]),
    "compiled network": lambda: TensorDictModule(
        torch.compile(nn.Linear(3, 3), backend="eager"), ["a"], ["b"]
    ),
    "sequence": lambda: TensorDictSequential(layer(), layer("b", "c")),
    "named sequence": lambda: TensorDictSequential({"first": layer(), "second": layer("b", "a")}),
    "nested sequence": lambda: TensorDictSequential(TensorDictSequential(layer()), layer("b", "b")),
    "in-place sequence": lambda: TensorDictSequential(layer(), inplace=True),
    "step": Steps,
    "own step": Own,
    "own sequence": lambda: Sequence(layer(), Sequence(layer("b", "c"), Own())),
}


class StepsOtherwise(TensorDictSequential):
    """A sequence of another package, with a `step` of its own."""

    has_tensor_step = True

    def step(self, a):
        return (self.module[0].module(a),)


def test_a_foreign_sequence_that_offers_step_is_called_by_it():
    module = StepsOtherwise(layer())
    (call,) = ModuleCalls(module).calls
    assert call.function == module.step
    assert not call.is_exact


class Scheduled(TensorDictModule):
    """A module of another package, whose `step` is that of a schedule."""

    def step(self, frames=1):
        raise AssertionError


class ScheduledSequence(TensorDictSequential):
    step = Scheduled.step


class ScheduledForward(Scheduled):
    def forward(self, tensordict):
        return tensordict.set("b", 3 * tensordict["a"])


@pytest.mark.parametrize(
    "make",
    [lambda: Scheduled(nn.Linear(3, 3), ["a"], ["b"]), lambda: ScheduledSequence(layer())],
    ids=["module", "sequence"],
)
def test_a_step_without_the_mark_is_not_called(make):
    module = make()
    calls = ModuleCalls(module)
    assert calls.is_forward()
    assert same(written(module), {B: calls.run(dict(leaves(batch())))[B]})


def patched(name, function, make=layer):
    module = make()
    setattr(module, name, function)
    return module


OBSTACLES = {
    "it is no tensordict module": lambda: lambda td: td.set("b", td["a"]),
    "it has hooks": lambda: hooked("forward_hook"),
    "it offers no step": Opaque,
    "it has options of its own": selected,
    "its step needs more than tensors": Narrow,
    "it has a forward of its own": lambda: patched(
        "forward", lambda tensordict: tensordict.set("b", -tensordict["a"])
    ),
    "it is compiled as a whole": compiled_as_a_whole,
    "it has a __call__ of its own": lambda: CalledOtherwise(nn.Linear(3, 3), ["a"], ["b"]),
}

WHOLE = {
    **OBSTACLES,
    "hook before": lambda: hooked("forward_pre_hook"),
    "keywords": lambda: TensorDictModule(lambda *, x: x + 1, {"x": "a"}, ["b"]),
    "method": lambda: TensorDictModule(nn.Linear(3, 3), ["a"], ["b"], method="forward"),
    "other tensordict": lambda: TensorDictModule(nn.Linear(3, 3), ["a"], ["b"], inplace=False),
    "selected outputs": lambda: TensorDictModule(
        lambda a: (a, a + 1), ["a"], ["b", "c"]
    ).select_out_keys("c"),
    "tolerant": lambda: TensorDictSequential(layer(), partial_tolerant=True),
    "distribution": lambda: ProbabilisticTensorDictModule(
        {"logits": "a"}, ["b"], distribution_class=torch.distributions.Categorical
    ),
    "other call": lambda: OtherCall(nn.Linear(3, 3), ["a"], ["b"]),
    "schedule": lambda: ScheduledForward(nn.Linear(3, 3), ["a"], ["b"]),
    "own call": lambda: patched("_call_module", lambda tensors, **_: -tensors[0]),
    "own run": lambda: patched(
        "_run_module",
        lambda module, tensordict: tensordict.set("b", -tensordict["a"]),
        lambda: TensorDictSequential(layer()),
    ),
    "own forward of a step": lambda: patched(
        "forward", lambda tensordict: tensordict.set("b", -tensordict["a"]), Own
    ),
    "other run": lambda: OtherRun(layer()),
    "other forward": lambda: OtherForward(nn.Linear(3, 3), ["a"], ["b"]),
}


class OtherForward(TensorDictModule):
    def forward(self, tensordict):
        return tensordict.set("b", tensordict["a"] + 1)


def written(module):
    """What a module writes on a tensordict, by key."""
    given = batch()
    before = dict(leaves(given))
    made = module(given)
    return {key: leaf for key, leaf in leaves(made) if leaf is not before.get(key)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", FLAT)
def test_flat_calls_write_what_the_module_writes(name):
    module = FLAT[name]()
    calls, given = ModuleCalls(module), dict(leaves(batch()))
    assert calls.is_flat
    assert calls.in_keys == [A]
    expected, values = written(module), calls.run(dict(given))
    assert same(expected, {key: values[key] for key in calls.out_keys})
    assert same(expected, calls.run_mixed(given, torch.Size([2])))
    assert list(given) == [A]


@pytest.mark.parametrize("name", WHOLE)
def test_a_module_that_does_more_is_called_on_a_tensordict(name):
    module = WHOLE[name]()
    calls = ModuleCalls(module)
    assert not calls.is_flat
    assert calls.in_keys is calls.out_keys is None
    found = []
    for run in (lambda: written(module), lambda: calls.run_mixed(dict(leaves(batch())), (2,))):
        torch.manual_seed(3)
        found.append(run())
    # a module that writes to another tensordict does not return its inputs
    assert same(*found)


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook"])
def test_a_module_with_hooks_of_gradients_is_called_as_it_is(kind):
    assert "it has hooks" in ModuleCalls(hooked(kind)).reason


@pytest.mark.parametrize("reason", OBSTACLES)
def test_the_reason_why_a_module_needs_a_tensordict_is_named(reason):
    module = OBSTACLES[reason]()
    kind = type(module).__name__
    found = [ModuleCalls(module).reason]
    if isinstance(module, TensorDictModuleBase):  # a sequence wraps what is no such module
        found.append(ModuleCalls(TensorDictSequential(layer(), module)).reason)
    for reason_found in found:
        assert reason_found == f"{kind} can only be called on a tensordict: {reason}"


def test_parts_on_tensors_and_parts_on_a_tensordict_run_in_their_order():
    module = TensorDictSequential(layer("a", "hidden"), Opaque(), layer("b", "c"))
    calls = ModuleCalls(module)
    assert [call.in_keys is None for call in calls.calls] == [False, True, False]
    assert same(written(module), calls.run_mixed(dict(leaves(batch())), torch.Size([2])))


@pytest.mark.parametrize("make", [*FLAT.values(), *WHOLE.values()], ids=[*FLAT, *WHOLE])
def test_calls_on_a_tensordict_write_what_forward_does(make):
    module, found = make(), []
    calls = ModuleCalls(module)
    for run in (module, calls.write):
        torch.manual_seed(3)
        found.append(dict(leaves(run(batch()))))
    assert same(*found)


def test_calls_on_a_tensordict_stop_where_they_are_told():
    module = TensorDictSequential(layer("a", "hidden"), Opaque(), layer("b", "c"))
    given = batch()
    assert ModuleCalls(module).write(given, last=-1) is given
    assert set(given.keys()) == {"a", "hidden", "b"}
    with pytest.raises(KeyError, match="'hidden' is missing: there are a"):
        ModuleCalls(layer("hidden", "c")).write(batch())


class ActsOtherwise(Steps):
    def forward(self, tensordict):
        return tensordict.set("b", tensordict["a"] - 9)


def test_a_step_for_acting_only_is_no_forward():
    calls = ModuleCalls(TensorDictSequential(layer("a", "a"), ActsOtherwise()))
    written_there = calls.write(batch())
    assert written_there["b"].equal(written_there["a"] - 9)


def test_networks_are_called_and_nothing_in_between():
    module = TensorDictSequential(layer(), TensorDictSequential(layer("b", "c")))
    networks = [module.module[0].module, module.module[1].module[0].module]
    assert [call.function for call in ModuleCalls(module).calls] == networks


class OverriddenForward(Own):
    def forward(self, tensordict):
        return tensordict.set("b", tensordict["a"])


class OverriddenStep(Own):
    def step(self, a):
        return (a - 1,)


@pytest.mark.parametrize(
    ("make", "is_exact"),
    [
        (layer, True),
        (Own, True),
        (OverriddenStep, True),
        (OverriddenForward, False),
        (Steps, False),
        (Opaque, False),
        (lambda: Sequence(layer(), Own()), True),
        (lambda: Sequence(layer(), Steps()), False),
    ],
)
def test_calls_of_a_foreign_step_are_for_acting_only(make, is_exact):
    calls = ModuleCalls(make())
    assert calls.is_forward() == is_exact
    with set_skip_existing(True):
        assert not calls.is_forward()


def test_calls_run_under_vmap():
    module = layer()
    stacked = TensorDict.from_module(module).expand(4).clone()

    def value(weights, a):
        with weights.to_module(module):
            return ModuleCalls(module).run({A: a})[B]

    found = torch.vmap(value, (0, None))(stacked, batch()["a"])
    assert torch.allclose(found, module(batch())["b"].expand(4, 2, 3))


def test_outputs_of_another_number_are_refused():
    short = TensorDictModule(nn.Identity(), ["a"], ["b", ("n", "c")])
    with pytest.raises(ValueError, match=r"each of \['b', \('n', 'c'\)\]: the network returned 1"):
        ModuleCalls(short).run(dict(leaves(batch())))


def test_run_stops_where_it_is_told_to():
    calls = ModuleCalls(TensorDictSequential(layer(), layer("b", "c")))
    assert list(calls.run(dict(leaves(batch())), last=-1)) == [A, B]


def test_the_call_that_fails_is_found_with_what_it_was_given():
    module = TensorDictSequential(layer(), layer("b", "c", (4, 2)))
    given = dict(leaves(batch()))
    call, seen = ModuleCalls(module).find_failure(given)
    assert call.function is module.module[1].module
    assert seen.keys() == {B}
    assert seen[B].equal(module.module[0].module(given[A]))
    assert ModuleCalls(layer()).find_failure(given) is None
    assert ModuleCalls(TensorDictSequential(Opaque(), module)).find_failure(given) is None


@pytest.mark.parametrize("reason", ["", "it has hooks"])
@pytest.mark.parametrize("module", [3, nn.Linear(3, 2)])
def test_the_calls_inside_of_what_is_no_sequence_are_refused(module, reason):
    with pytest.raises(TypeError, match="module: expected a sequence of tensordict modules"):
        ModuleCalls(module, inside=True, reason=reason)


def test_a_call_on_a_tensordict_has_no_steps():
    (call,) = ModuleCalls(lambda batch: batch).calls
    with pytest.raises(TypeError, match="no steps on tensors: function can only be called"):
        call.steps()


def test_a_failure_is_sought_among_tensors_by_key():
    with pytest.raises(TypeError, match="values: expected tensors by key, got 3"):
        ModuleCalls(lambda batch: batch).find_failure(3)


class Lists(Own):
    def step_calls(self):
        return [(lambda a: a, ["a"], ["c"]), (lambda c: (c + 3, c), ["c"], ["b", "_"])]


@pytest.mark.parametrize("make", [Own, Lists])
def test_a_step_of_our_own_lists_its_calls_too(make):
    (call,) = ModuleCalls(make()).calls
    values = run_steps(call.steps(), dict(leaves(batch())))
    assert values[B].equal(batch()["a"] + 3)
    assert len(call.steps()) == (2 if make is Lists else 1)


def test_a_number_of_calls_that_is_none_is_named():
    with pytest.raises(TypeError, match="last: expected a whole number, got 'all'"):
        ModuleCalls(layer("hidden", "c")).write(batch(), last="all")
