import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from rl_policies import QValueActor


class Opaque(TensorDictModuleBase):
    """A module that only knows tensordicts."""

    in_keys = ("observation",)
    out_keys = ("hidden",)

    def forward(self, tensordict):
        return tensordict.set("hidden", 2 * tensordict["observation"])


class Recurrent(Opaque):
    """A module of another package: `forward` knows a mode that `step` does not."""

    has_tensor_step = True
    whole_sequences = False

    def forward(self, tensordict):
        factor = 9 if self.whole_sequences else 2
        return tensordict.set("hidden", factor * tensordict["observation"])

    def step(self, observation):
        return (2 * observation,)


def linear(source, target, sizes=(3, 4)):
    return TensorDictModule(nn.Linear(*sizes), in_keys=[source], out_keys=[target])


def actor(*front):
    head = linear("hidden", "action_value", (4, 2))
    net = TensorDictSequential(*(front or (linear("observation", "hidden"),)), head)
    return QValueActor(net, action_space="categorical")


def both(policy, observation):
    """What `step` and what tensordict's own forward compute."""
    outputs = dict(zip(policy.out_keys, policy.step(observation), strict=True))
    batch = TensorDict({"observation": observation}, observation.shape[:1])
    for module in policy.module:
        batch = module(batch)
    return outputs, {key: batch[key] for key in policy.out_keys}


def test_nested_sequences_are_flattened():
    policy = actor(TensorDictSequential(linear("observation", "x"), linear("x", "hidden", (4, 4))))
    assert len(policy.step_calls()) == 4
    assert_close(*both(policy, torch.randn(5, 3)))


def test_sequence_with_names_is_flattened():
    named = TensorDictSequential({"first": linear("observation", "hidden")})
    assert_close(*both(actor(named), torch.randn(5, 3)))


def test_calls_are_listed_once():
    policy = actor()

    def calls_after_a_step():
        policy.step(torch.zeros(1, 3))
        # no output shows calls that are listed again, only their cost
        return policy.__dict__["_module_calls"]

    assert calls_after_a_step() is calls_after_a_step()


def test_calls_follow_a_replaced_network():
    policy, x = actor(), torch.randn(5, 3)
    policy.step(x)
    policy.module[0].module[0].module = nn.Linear(3, 4)
    assert_close(*both(policy, x))
    policy.module[0].module[1] = linear("hidden", "action_value", (4, 2))
    assert_close(*both(policy, x))


def test_hook_added_later_runs():
    policy, seen = actor(), []
    batch = TensorDict({"observation": torch.zeros(5, 3)}, [5])
    policy(batch)
    policy.module[0].module[0].register_forward_hook(lambda *_: seen.append(1))
    policy(batch)
    assert seen == [1]
    with pytest.raises(TypeError, match="TensorDictModule can only be called on a tensordict"):
        policy.step(torch.zeros(5, 3))


def test_parameters_put_in_later_are_used():
    policy, x = actor(), torch.randn(5, 3)
    policy.step(x)
    zeros = TensorDict.from_module(policy).apply(torch.zeros_like)
    with zeros.to_module(policy):
        assert (policy.step(x)[-1] == 0).all()
    assert (policy.step(x)[-1] != 0).any()


def test_opaque_part_is_called_on_a_tensordict():
    policy = actor(Opaque(), linear("hidden", "hidden"))
    batch = policy(TensorDict({"observation": torch.randn(5, 3)}, [5]))
    assert batch["action"].shape == (5,)
    with pytest.raises(TypeError, match="Opaque can only be called on a tensordict"):
        policy.step(torch.zeros(5, 3))


def test_foreign_part_steps_for_acting_and_runs_forward_otherwise():
    part, x = Recurrent(), torch.randn(5, 3)
    policy = actor(part, linear("hidden", "hidden"))
    assert_close(*both(policy, x))
    part.whole_sequences = True
    batch = policy(TensorDict({"observation": x}, [5]))
    wanted = policy.module[0].module[1].module(9 * x)
    assert_close(batch["action_value"], policy.module[0].module[2].module(wanted))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copy_lists_calls_of_its_own(duplicate):
    policy, x = actor(), torch.randn(5, 3)
    before = policy.step(x)
    other = duplicate(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert (other.step(x)[-1] == 0).all()
    assert_close(policy.step(x), before)


def test_calls_are_not_pickled():
    policy = actor()
    policy.step(torch.zeros(1, 3))
    assert "_module_calls" in policy.__dict__
    assert "_module_calls" not in policy.__getstate__()
    assert "_module_calls" not in copy.deepcopy(policy).__dict__
    assert "_module_calls" not in pickle.loads(pickle.dumps(policy)).__dict__


class Several(nn.Module):
    """A network that returns the same tensor so many times."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        return (x,) * self.count


@pytest.mark.parametrize("count", [1, 3])
def test_tuple_of_another_length_raises_with_its_keys(count):
    keys = ["hidden", "more"]
    part = TensorDictModule(Several(count), in_keys=["observation"], out_keys=keys)
    with pytest.raises(ValueError, match=rf"each of \['hidden', 'more'\].*returned {count}"):
        actor(part).step(torch.zeros(5, 4))


def test_network_with_too_few_outputs_raises():
    short = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["hidden", "more"])
    with pytest.raises(ValueError, match="returned 1"):
        actor(short).step(torch.zeros(5, 4))


def stepped(policy, observation):
    """What a loop computes that asks for the calls once."""
    values = {"observation": observation}
    for call, in_keys, out_keys in policy.step_calls():
        made = call(*[values[key] for key in in_keys])
        values.update(zip(out_keys, made if isinstance(made, tuple) else (made,), strict=True))
    return {key: values[key] for key in policy.out_keys}


def test_step_calls_are_those_of_the_parts():
    policy, x = actor(), torch.randn(5, 3)
    calls = [call for call, *_ in policy.step_calls()]
    assert calls[:2] == [policy.module[0].module[0].module, policy.module[0].module[1].module]
    assert_close(stepped(policy, x), both(policy, x)[1])
    policy.module[0].module[0].module = nn.Linear(3, 4)
    assert_close(stepped(policy, x), both(policy, x)[1])


def test_step_calls_write_the_selected_keys():
    policy, x = actor(), torch.randn(5, 3)
    policy.select_out_keys("action")
    ((_, in_keys, out_keys),) = policy.step_calls()
    assert (in_keys, out_keys) == (["observation"], ["action"])
    assert_close(stepped(policy, x), {"action": policy.step(x)[0]})


def test_step_calls_skip_no_hook():
    policy = actor()
    policy.module[0].module[0].register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="can only be called on a tensordict"):
        policy.step_calls()


def test_step_calls_of_a_nested_policy_are_current_parts():
    inner, x = actor(), torch.randn(5, 3)
    outer = QValueActor(TensorDictSequential(inner), action_space="categorical")
    assert len(outer.step_calls()) == 4
    outer.step(x)
    inner.module[0].module[0].module = nn.Linear(3, 4)
    assert_close(*both(outer, x))


class Scaled(QValueActor):
    """A policy whose step is its own."""

    def step(self, *tensors):
        return super().step(*[2 * one for one in tensors])


def test_step_calls_use_an_overridden_step():
    policy = Scaled(linear("observation", "action_value", (3, 2)), action_space="categorical")
    ((call, *_),) = policy.step_calls()
    assert call == policy.step
    x = torch.randn(5, 3)
    batch = policy(TensorDict({"observation": x}, [5]))
    assert_close([batch[key] for key in policy.out_keys], list(policy.step(x)))
    outer = QValueActor(TensorDictSequential(policy), action_space="categorical")
    assert outer.step_calls()[0][0] == policy.step
