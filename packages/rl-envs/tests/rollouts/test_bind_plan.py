"""A plan on the columns of a batch, alongside the plan itself on tensors."""

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential

from rl_envs import GymEnv, SerialEnv
from rl_envs.rollouts.columns import Columns
from rl_envs.rollouts.policy_plan import PolicyPlan, refuse_other_keys

BATCH, STEPS = torch.Size([2]), 5
A, B, C = ("a",), ("b",), ("n", "c")


def columns():
    made = Columns(BATCH, STEPS)
    for key, size in ((A, 3), (B, 4), (C, 1)):
        made.add(key, torch.Size([size]), torch.float32)
    made.tensors[A].copy_(torch.arange(30.0).reshape(2, 5, 3))
    return made


def parts():
    """Reads a, makes b, then c from both; something it drops is in between."""
    wide = TensorDictModule(lambda a: (a[:, :1].expand(2, 4) + 1, a), ["a"], ["b", "_"])
    return TensorDictSequential(
        wide, TensorDictModule(lambda a, b: a[:, 1:2] * b[:, :1], ["a", "b"], [C])
    )


class Whole:
    """The same, on a tensordict."""

    def __call__(self, root):
        return parts()(root)


class Listed(TensorDictModuleBase):
    """The same as one module, which says what its step calls."""

    has_tensor_step = True
    in_keys, out_keys = ["a"], ["b", C]

    def step(self, a):
        b = a[:, :1].expand(2, 4) + 1
        return b, a[:, 1:2] * b[:, :1]

    def step_calls(self):
        one, other = parts().module
        return [(one.module, ["a"], ["b", "_"]), (other.module, ["a", "b"], [C])]

    def forward(self, tensordict):
        return parts()(tensordict)


@pytest.mark.parametrize("make", [parts, Whole, Listed])
def test_a_bound_plan_writes_what_the_plan_returns(make):
    found, plan = columns(), PolicyPlan(make())
    assert plan.bound() is None  # not before it has been checked against its policy
    plan(found.at(0, [A]), BATCH)
    assert (plan.bound() is None) == (make is Whole)
    call = plan.bound() or refuse_other_keys(plan, {B, C}, BATCH)
    act = found.bind(call, [A], [B, C])
    for t in (1, 3):
        act(t)
        for key, value in plan(found.at(t, [A]), BATCH).items():
            assert (found.tensors[key][:, t] == value).all()
        assert (
            found.tensors[C][:, t, 0] == found.tensors[A][:, t, 1] * found.tensors[B][:, t, 0]
        ).all()
    assert not found.tensors[B][:, [0, 2, 4]].any()


def test_outputs_of_a_policy_are_copied():
    kept = torch.zeros(2, 4)

    def policy(a):
        return kept.add_(1)

    plan, found = PolicyPlan(TensorDictModule(policy, ["a"], ["b"])), columns()
    plan(found.at(0, [A]), BATCH)
    act, before = found.bind(plan.bound(), [A], [B]), kept.clone()
    for t in range(STEPS):
        act(t)
    assert (found.tensors[B][0, :, 0] - before[0, 0]).tolist() == [1, 2, 3, 4, 5]


class Changes:
    """A policy that writes x and y, and other entries from its third step on."""

    def __init__(self, *later):
        self.later, self.steps = later, 0

    def __call__(self, root):
        self.steps += 1
        root["action"] = torch.tensor([[True, False]] * 2)
        for name in ("x", "y") if self.steps < 3 else self.later:
            root[name] = torch.ones(2, 1)
        return root


@pytest.mark.parametrize("later", ["x", "xyz", "xz"])
def test_a_policy_that_writes_other_keys_than_before_is_refused(later):
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    with pytest.raises(ValueError, match=r"wrote \['action', 'x', 'y'\] in the steps before"):
        env.rollout(5, Changes(*later), break_when_any_done=False)
    env.close()


@pytest.mark.parametrize("later", [torch.zeros(2), torch.zeros(()), torch.zeros(1).double()])
def test_another_shape_or_dtype_than_before_is_refused(later):
    values = iter([*[torch.zeros(1)] * 4, later])  # the first step asks twice, to check the plan

    def policy(seen):
        return torch.tensor([True, False]), next(values)

    plan = PolicyPlan(TensorDictModule(policy, ["observation"], ["action", "value"]))
    with pytest.raises(ValueError, match=r"'value': expected \(1,\) torch.float32 as in the steps"):
        GymEnv("CartPole-v1").rollout(8, plan)


def test_a_plan_goes_on_where_columns_grow():
    env = GymEnv("CartPole-v1", max_episode_steps=700)

    def balance(seen):  # holds the pole for long: more steps than there is room for at first
        left = seen[2] + 0.5 * seen[3] + 0.1 * seen[1] + 0.05 * seen[0] < 0
        return torch.stack([left, ~left]), seen * 2

    env.set_seed(0)
    plan = PolicyPlan(TensorDictModule(balance, ["observation"], ["action", "twice"]))
    batch = env.rollout(600, plan)
    assert len(batch) > 256
    assert (batch["twice"] == batch["observation"] * 2).all()
