import re

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn

from rl_envs import GymEnv, PolicyPlan, policy_plan
from rl_envs.testing import CountingEnv

VALUES = {("observation",): torch.linspace(-1, 1, 6).reshape(2, 3)}
ROWS = torch.Size([2])


def linear():
    return TensorDictModule(nn.Linear(3, 5), ["observation"], ["logits"])


def test_a_key_that_the_environment_lacks_is_named():
    plan = policy_plan(TensorDictModule(nn.Identity(), ["hidden"], ["action"]))
    with pytest.raises(KeyError, match=r"reads \['hidden'\].*lacks: it shows \['observation'\]"):
        plan(VALUES, ROWS)
    assert not plan.is_verified


def test_a_policy_that_returns_no_tensordict_is_named():
    with pytest.raises(TypeError, match="returns it with its entries, or None: got ndarray"):
        GymEnv("Pendulum-v1").rollout(3, lambda root: np.zeros(1))


def test_policy_plan_refuses_objects_that_cannot_be_called():
    with pytest.raises(TypeError, match="can be called on a tensordict: got int"):
        policy_plan(3)


def test_a_plan_is_planned_already():
    plan = policy_plan(linear())
    plan(VALUES, ROWS)
    assert policy_plan(plan) is plan
    assert plan.is_verified


def test_a_plan_is_made_anew_after_a_part_of_its_policy_was_replaced():
    policy = TensorDictSequential(linear())
    plan = policy_plan(policy)
    plan(VALUES, ROWS)
    policy.module[0] = linear()
    assert policy_plan(plan) is plan
    found = plan(VALUES, ROWS)["logits",]
    assert torch.equal(found, policy.module[0].module(VALUES["observation",]))


def test_two_modules_with_one_recurrent_state_are_refused():
    def cell():
        return TensorDictModule(nn.GRUCell(3, 3), ["observation", "h"], [("next", "h")])

    with pytest.raises(ValueError, match="carry their recurrent state under one key, 'h'"):
        PolicyPlan(TensorDictSequential(cell(), cell()))


def wrong_sizes():
    made = linear()
    return TensorDictSequential(made, TensorDictModule(nn.Linear(4, 2), ["logits"], ["action"]))


class WrongStep(TensorDictModuleBase):
    has_tensor_step = True
    in_keys, out_keys = ("observation",), ("action",)

    def forward(self, tensordict):
        return tensordict.set("action", self.step(tensordict["observation"]))

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


def test_a_policy_on_another_device_is_named_with_what_moves_rows_there():
    policy = TensorDictModule(nn.Linear(1, 2, device="meta"), ["observation"], ["action"])
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        CountingEnv().rollout(3, policy)
    told = "its parameters are on meta, these on cpu. Pass auto_cast_to_device=True to rollout"
    assert told in caught.value.__notes__[-1]


@pytest.mark.parametrize("shown", [3, None, b"bytes", (3, 0), ["text"], linear()])
def test_keys_that_are_none_are_named(shown):
    with pytest.raises(TypeError, match=r"expected (an iterable of keys|keys as tuples)"):
        policy_plan(linear()).check_reads(shown)


def test_a_batch_size_that_is_none_is_named():
    with pytest.raises(TypeError, match="batch_size: expected a batch size, got"):
        policy_plan(linear())(VALUES, 1.5)
