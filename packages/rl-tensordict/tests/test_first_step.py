"""The first step of a policy leaves it in the state that one call does."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import nn

from rl_tensordict import VerifiedCalls, leaves

SEEN = ("observation",)
ROWS = torch.Size([2])


def values():
    return {SEEN: torch.linspace(-1, 1, 6).reshape(2, 3)}


def written(policy, given):
    """What the policy writes on a tensordict, by key."""
    made = policy(TensorDict({"observation": given[SEEN]}, ROWS))
    return {key: leaf for key, leaf in leaves(made) if key != SEEN}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def module(function, out_keys=("action",), in_keys=("observation",)):
    return TensorDictModule(function, list(in_keys), list(out_keys))


class Noise(nn.Module):
    """Draws from a generator of its own, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)
        self.calls = 0

    def forward(self, seen):
        self.calls += 1
        return torch.rand(2, generator=self.generator)


class Foreign(TensorDictModuleBase):
    """A module of another package: its calls are compared with its forward."""

    has_tensor_step = True
    in_keys, out_keys = ["observation"], ["action"]

    def __init__(self, network, step=None):
        super().__init__()
        self.network, self.other = network, step

    def step(self, seen):
        return ((self.other or self.network)(seen),)

    def forward(self, tensordict):
        return tensordict.set("action", self.network(tensordict["observation"]))


class Count(nn.Module):
    """Returns a buffer, that each call writes again."""

    def __init__(self, by=1):
        super().__init__()
        self.by = by
        self.register_buffer("count", torch.zeros(2))

    def forward(self, seen):
        self.count += self.by
        return self.count


class Growing(nn.Module):
    """Has a buffer that is longer after each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, seen):
        self.seen = torch.cat([self.seen, seen.sum().reshape(1)])
        return seen + len(self.seen)


class LaterBuffer(nn.Module):
    """Makes its buffer in the first call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, seen):
        self.mean = seen.mean(0) if self.mean is None else 0.5 * self.mean
        return seen - self.mean


def sampler():
    return ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical
    )


POLICIES = {
    "own generator": lambda: module(Noise()),
    "own generator of a foreign module": lambda: Foreign(Noise()),
    "own generator and a part on a tensordict": lambda: TensorDictSequential(
        module(Noise(), ["noise"]), module(lambda seen: seen, ["logits"]), sampler()
    ),
    "in place": lambda: module(lambda seen: seen.add_(1)),
    "foreign in place": lambda: Foreign(lambda seen: seen.add_(1)),
    "counter": lambda: module(Count()),
    "foreign counter": lambda: Foreign(Count()),
    "norm": lambda: module(nn.BatchNorm1d(3, momentum=0.5)),
    "foreign norm": lambda: Foreign(nn.BatchNorm1d(3, momentum=0.5)),
    "lazy norm": lambda: module(nn.LazyBatchNorm1d(momentum=0.5)),
    "foreign lazy norm": lambda: Foreign(nn.LazyBatchNorm1d(momentum=0.5)),
    "growing": lambda: module(Growing()),
    "foreign growing": lambda: Foreign(Growing()),
    "later buffer": lambda: module(LaterBuffer()),
    "foreign later buffer": lambda: Foreign(LaterBuffer()),
    "group": lambda: module(
        lambda seen: TensorDict({"loc": seen, "deep": {"scale": seen + 1}}, [2]), ["parameters"]
    ),
    "group of a dictionary": lambda: module(lambda seen: {"loc": seen + 1}, ["parameters"]),
    "group that is read": lambda: TensorDictSequential(
        module(lambda seen: TensorDict({"loc": seen}, [2]), ["parameters"]),
        module(lambda group: group["loc"] + 1, ["hidden"], ["parameters"]),
        module(lambda loc: loc + 1, ["action"], [("parameters", "loc")]),
    ),
    "entries that are read as a group": lambda: TensorDictSequential(
        module(lambda seen: seen + 1, [("parameters", "loc")]),
        module(lambda group: group["loc"] + 1, ["action"], ["parameters"]),
    ),
    "arrays": lambda: module(lambda seen: seen.numpy() + 1),
    "dropped entries": lambda: TensorDictSequential(
        module(lambda seen: seen + 1, ["hidden"]),
        TensorDictModule(lambda hidden: hidden + 1, ["hidden"], ["action"], inplace=False),
    ),
}


def copied(made):  # a policy may write again what it has returned
    return {key: leaf.clone() for key, leaf in made.items()}


def steps(make, act):
    """A policy after three steps, what they wrote, and the next random number."""
    torch.manual_seed(7)
    policy = make()
    act = act(policy)
    return policy, [copied(act(values())) for _ in range(3)], torch.rand(1)


def by_itself(policy):
    return lambda given: written(policy, given)


def by_calls(policy):
    calls = VerifiedCalls(policy)
    return lambda given: calls(given, ROWS)


@pytest.mark.parametrize("name", POLICIES)
def test_steps_leave_a_policy_as_its_own_calls_do(name):
    twin, expected, number = steps(POLICIES[name], by_itself)
    policy, found, same_number = steps(POLICIES[name], by_calls)
    assert number.equal(same_number)
    assert all(same(one, other) for one, other in zip(expected, found, strict=True))
    assert same(dict(twin.named_buffers()), dict(policy.named_buffers()))


def test_what_a_policy_is_given_is_changed_as_by_one_call():
    for make in (POLICIES["in place"], POLICIES["foreign in place"]):
        given, twin = values(), values()
        VerifiedCalls(make())(given, ROWS)
        written(make(), twin)
        assert given[SEEN].equal(twin[SEEN])


@pytest.mark.parametrize("make", [module, Foreign, lambda net: TensorDictSequential(module(net))])
def test_a_network_is_run_once_where_its_calls_are_its_forward(make):
    noise = Noise()
    calls = VerifiedCalls(make(noise))
    calls(values(), ROWS)
    assert noise.calls == (2 if make is Foreign else 1)
    assert calls.is_flat


class CountingForward(Foreign):
    """Its forward counts calls, its step does not."""

    def __init__(self):
        super().__init__(Count(), lambda seen: seen + 1)

    def forward(self, tensordict):
        self.network(tensordict["observation"])
        return tensordict.set("action", tensordict["observation"] + 1)


def raises(_):
    msg = "only on tensordicts"
    raise TypeError(msg)


def plus_one(seen):
    return seen + 1


class TwoOutputs(Foreign):
    """Its step returns two outputs for one key."""

    def step(self, seen):
        return seen + 1, seen


class LaterOutput(Foreign):
    """The second output of its step is not what its forward writes."""

    in_keys, out_keys = ["observation"], ["action", ("next", "hidden")]

    def step(self, seen):
        return seen + 1, seen

    def forward(self, tensordict):
        return super().forward(tensordict).set(("next", "hidden"), 2 * tensordict["observation"])


DIFFERENCES = {
    "another value": (
        lambda: Foreign(lambda seen: seen.add_(1), lambda seen: seen.add_(2)),
        "'action' has other values",
    ),
    "another value of a later output": (
        lambda: LaterOutput(plus_one),
        "('next', 'hidden') has other values",
    ),
    "another shape": (
        lambda: Foreign(plus_one, lambda seen: seen[:1] + 1),
        "'action' has another shape or dtype",
    ),
    "another dtype": (
        lambda: Foreign(plus_one, lambda seen: seen.double() + 1),
        "'action' has another shape or dtype",
    ),
    "a word": (lambda: Foreign(plus_one, lambda seen: "word"), "'action' is no tensor"),
    "an error": (lambda: Foreign(plus_one, raises), "TypeError: only on tensordicts"),
    "too many outputs": (
        lambda: TwoOutputs(plus_one),
        "ValueError: expected a tensor for each of ['action']: the network returned 2",
    ),
    "another buffer": (CountingForward, "('buffer', 'network.count') has other values"),
    "a group": (POLICIES["group"], "'parameters' is no tensor"),
    "an array": (POLICIES["arrays"], "'action' is no tensor"),
    "dropped entries": (
        POLICIES["dropped entries"],
        "TensorDictModule drops ['observation', 'hidden']",
    ),
}


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_calls_that_would_do_otherwise_are_not_made(kind):
    make, reason = DIFFERENCES[kind]
    calls = VerifiedCalls(make())
    found = calls(values(), ROWS)
    assert calls.stats()["fallback"] == reason
    assert not calls.is_flat
    assert same(found, written(make(), values()))


def test_a_fallback_draws_no_more_than_the_policy():
    def draw(_):
        return torch.rand(2)

    torch.manual_seed(3)
    calls = VerifiedCalls(Foreign(draw, lambda seen: draw(draw(seen))))
    calls(values(), ROWS)
    assert calls.stats()["fallback"]
    following = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3)[2:], following)


def test_a_policy_that_differs_is_stepped_once():
    policy = Foreign(Count(), Count(by=3))
    calls = VerifiedCalls(policy)
    calls(values(), ROWS)
    assert calls.stats()["fallback"]
    assert policy.network.count.tolist() == [1, 1]


def test_a_lazy_policy_is_compared_once_it_is_made():
    calls = VerifiedCalls(POLICIES["foreign lazy norm"]())
    calls(values(), ROWS)
    assert not calls.is_verified
    calls(values(), ROWS)
    assert calls.is_verified
    assert calls.stats()["fallback"] == ""
    assert calls.is_flat


def test_a_policy_that_raises_is_verified_when_it_runs():
    outputs = [(torch.zeros(2), torch.zeros(2)), torch.zeros(2)]
    calls = VerifiedCalls(module(lambda seen: outputs.pop(0)))
    with pytest.raises(ValueError, match="expected a tensor for each of"):
        calls(values(), ROWS)
    assert not calls.is_verified
    assert calls(values(), ROWS).keys() == {("action",)}
    assert calls.is_verified
