import re

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

from rl_envs import GymEnv, policy_plan
from rl_envs.testing import CountingEnv
from rl_layout import keys

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
    return {key: leaf for key, leaf in keys.leaves(made) if key not in VALUES}


class Steps(TensorDictModuleBase):
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
def test_a_plan_does_what_the_policy_does(name):
    policy = POLICIES[name]()
    with set_interaction_type(InteractionType.RANDOM):
        torch.manual_seed(7)
        expected = [through_tensordict(policy) for _ in range(3)]
        torch.manual_seed(7)
        plan = policy_plan(policy)
        found = [plan(VALUES, ROWS) for _ in range(3)]
    assert list(VALUES) == [("observation",)]
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "flat"), [("sequence", True), ("step", True), ("sampling", False), ("callable", False)]
)
def test_stats_say_how_the_policy_is_called(name, flat):
    plan = policy_plan(POLICIES[name]())
    plan(VALUES, ROWS)
    assert plan.stats()["flat"] is flat
    assert plan.stats()["verified"]
    assert plan.stats()["fallback"] == ""


def test_stock_modules_are_called_without_a_tensordict():
    plan = policy_plan(TensorDictSequential(linear(), linear()))
    assert plan.in_keys == [("observation",)]
    assert all(isinstance(entry.call, nn.Linear) for entry in plan.entries)


class Liar(Steps):
    def step(self, seen):
        return seen + 5, seen * 2

    def forward(self, tensordict):
        return tensordict.set("action", tensordict["observation"] + 1)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Liar(), "'action' has other values"),
        (TensorDictModule(lambda s: {"action": s}, ["observation"], ["action"]), "is no tensor"),
    ],
)
def test_a_plan_that_differs_falls_back_and_says_so(policy, reason):
    plan = policy_plan(policy)
    found = [plan(VALUES, ROWS)["action",] for _ in range(2)]
    assert reason in plan.stats()["fallback"] or "'next'" in plan.stats()["fallback"]
    assert torch.equal(*found)
    assert torch.equal(found[0], through_tensordict(policy)["action",])


def test_a_plan_that_fails_falls_back():
    class Fails(Steps):
        def step(self, seen):
            msg = "only on tensordicts"
            raise TypeError(msg)

        def forward(self, tensordict):
            return tensordict.set("action", tensordict["observation"] + 1)

    plan = policy_plan(Fails())
    assert plan(VALUES, ROWS)["action",].shape == (2, 3)
    assert plan.stats()["fallback"] == "TypeError: only on tensordicts"


def test_hooks_are_not_skipped():
    module = linear()
    module.register_forward_hook(lambda mod, args, out: out.set("hooked", out["logits"]))
    plan = policy_plan(module)
    assert ("hooked",) in plan(VALUES, ROWS)
    assert not plan.is_flat


def test_verifying_leaves_buffers_as_one_call_does():
    norm = TensorDictModule(nn.BatchNorm1d(3, momentum=0.5), ["observation"], ["action"])
    plan = policy_plan(norm)
    plan(VALUES, ROWS)
    assert norm.module.num_batches_tracked == 1


def test_a_callable_with_state_of_its_own_is_called_once_a_step():
    actions = iter([torch.zeros(1), torch.ones(1)])
    plan = policy_plan(lambda td: td.set("action", next(actions)))
    made = [plan({("observation",): torch.zeros(3)}, torch.Size([]))[("action",)] for _ in range(2)]
    assert [action.item() for action in made] == [0.0, 1.0]


def test_a_key_that_the_environment_lacks_is_named():
    plan = policy_plan(TensorDictModule(nn.Identity(), ["hidden"], ["action"]))
    with pytest.raises(KeyError, match=r"reads \['hidden'\].*lacks: it shows \['observation'\]"):
        plan(VALUES, ROWS)


def test_policy_plan_refuses_objects_that_cannot_be_called():
    with pytest.raises(TypeError, match="can be called on a tensordict: got int"):
        policy_plan(3)


def test_a_plan_is_planned_already():
    plan = policy_plan(linear())
    assert policy_plan(plan) is plan


def test_a_fallback_draws_no_more_than_the_policy():
    class Draws(Steps):
        def step(self, seen):
            return torch.rand(2), torch.rand(2)

        def forward(self, tensordict):
            return tensordict.set("action", torch.rand(2))

    torch.manual_seed(3)
    policy_plan(Draws())(VALUES, ROWS)
    following = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3)[2:], following)


def wrong_sizes():
    made = linear()
    return TensorDictSequential(made, TensorDictModule(nn.Linear(4, 2), ["logits"], ["action"]))


class WrongStep(Steps):
    def step(self, seen):
        raise ValueError("no step")


class Opaque(nn.Module):
    def forward(self, tensordict):
        raise ValueError("no call")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (wrong_sizes, r"Linear of the policy, which was given 'logits' float32 \[2, 5\]"),
        (WrongStep, r"WrongStep of the policy, which was given 'observation' float32 \[2, 3\]"),
        (Opaque, r"Opaque of the policy, which was given 'observation' float32 \[2, 3\]"),
    ],
)
def test_a_module_that_fails_is_named_with_what_it_was_given(make, told):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        policy_plan(make())(VALUES, ROWS)
    assert re.search(f"{told} for environments \\[2\\]", caught.value.__notes__[-1])


@pytest.mark.parametrize("env", [CountingEnv, lambda: GymEnv("CartPole-v1")], ids=["own", "gym"])
@pytest.mark.parametrize("callback", [None, lambda env, step: None], ids=["plan", "tensordicts"])
def test_policies_of_wrong_sizes_are_named_in_every_rollout(env, callback):
    policy = TensorDictModule(nn.Linear(7, 2), ["observation"], ["action"])
    with pytest.raises(RuntimeError) as caught:
        env().rollout(3, policy, callback=callback)
    assert re.search(r"Linear .*'observation' float32 \[\d\]", caught.value.__notes__[-1])


@pytest.mark.parametrize("shown", [3, None, b"bytes", (3, 0), ["text"], linear()])
def test_keys_that_are_none_are_named(shown):
    with pytest.raises(TypeError, match=r"expected (an iterable of keys|keys as tuples)"):
        policy_plan(linear()).check_reads(shown)


def test_a_batch_size_that_is_none_is_named():
    with pytest.raises(TypeError, match="expected a batch size: got float"):
        policy_plan(linear())(VALUES, 1.5)
