"""New weights of a policy, of any form."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_envs.testing import CountingEnv


def test_rows_carry_the_version_of_the_weights_that_acted(memory_policy):
    collector = Collector(CountingEnv(), memory_policy(), frames_per_batch=2)
    batches = [collector.next()]
    collector.update_policy_weights_()
    batches += [collector.next()]
    assert torch.cat(batches)["collector", "policy_version"].tolist() == [0, 0, 1, 1]


def test_new_weights_act_from_the_next_batch_on():
    policy = TensorDictModule(nn.Linear(1, 2, bias=False), ["observation"], ["action"])
    env = CountingEnv()
    env.check_values = False
    collector = Collector(env, policy, frames_per_batch=1)
    collector.update_policy_weights_({"module.weight": torch.full((2, 1), 3.0)})
    assert (policy.module.weight == 3).all()
    assert collector.policy_version == 1


def test_wrong_weights_are_refused_by_name_and_change_nothing():
    policy = TensorDictModule(nn.Linear(1, 2), ["observation"], ["action"])
    collector = Collector(CountingEnv(), policy, frames_per_batch=1)
    before = {name: leaf.clone() for name, leaf in policy.state_dict().items()}
    weight, bias = torch.full((2, 1), 3.0), torch.ones(2)
    for wrong, message in [
        ({"module.weight": weight}, r"'module\.bias': expected float32 \[2\], got nothing"),
        ({"module.weight": weight, "module.bias": weight}, r"float32 \[2\], got float32 \[2, 1\]"),
        ({"module.weight": weight, "module.bias": bias.cfloat()}, r"\[2\], got complex64 \[2\]"),
        ({"module.weight": weight, "module.bias": bias, "x": bias}, r"\['x'\] are none of its"),
    ]:
        with pytest.raises(ValueError, match=message):
            collector.update_policy_weights_(wrong)
        assert all(torch.equal(leaf, before[name]) for name, leaf in policy.state_dict().items())
    assert collector.policy_version == 0


def test_weights_of_modules_that_have_no_sizes_yet_are_loaded():
    policy = TensorDictModule(nn.LazyLinear(2), ["observation"], ["action"])
    collector = Collector(CountingEnv(), policy, frames_per_batch=1)
    with pytest.raises(ValueError, match=r"'module\.bias': expected one, got nothing"):
        collector.update_policy_weights_({"module.weight": torch.ones(2, 1)})
    weights = {"module.weight": torch.ones(2, 1), "module.bias": torch.ones(2)}
    collector.update_policy_weights_(weights)
    assert torch.equal(policy.module.weight, weights["module.weight"])


def test_a_plain_module_takes_weights_under_its_own_names():
    net, other = nn.Linear(1, 2), nn.Linear(1, 2)
    collector = Collector(CountingEnv(), net, frames_per_batch=3)
    collector.update_policy_weights_(other)
    assert (net.weight == other.weight).all()
    assert collector.state_dict()["policy"].keys() == net.state_dict().keys()
    collector.update_policy_weights_(TensorDictModule(nn.Linear(1, 2), ["a"], ["b"]))
    assert (net.weight != other.weight).any()


class FirstAction(nn.Module):
    """Takes an action by the sign of one weight."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, observation):
        first = (self.weight > 0).expand(observation.shape)
        return torch.cat([first, ~first], -1)


def first_action(weight=1.0):
    return TensorDictModule(FirstAction(weight), ["observation"], ["action"])


@pytest.mark.parametrize("make", [FirstAction, first_action])
def test_a_compiled_policy_acts_and_takes_weights_of_a_plain_one_and_gives_them(make):
    plain, weak = make(), make(-1.0)
    compiled = torch.compile(plain, backend="eager")
    collector = Collector(CountingEnv(), compiled, frames_per_batch=3)
    assert collector.next()["action"][:, 0].all()
    for weights in (weak, weak.state_dict(), torch.compile(weak, backend="eager")):
        collector.update_policy_weights_(make())
        collector.update_policy_weights_(weights)
        assert not collector.next()["action"][:, 0].any()
    saved = collector.state_dict()
    other = Collector(CountingEnv(), make(), frames_per_batch=3)
    other.load_state_dict(saved)  # whichever of them is compiled
    assert torch.equal(other.next()["action"], collector.next()["action"])


def test_a_compiled_recurrent_policy_gets_its_primer(memory_policy):
    compiled = torch.compile(memory_policy(), backend="eager")
    batch = Collector(CountingEnv(max_steps=3), compiled, frames_per_batch=4).next()
    assert batch["hidden"].flatten().tolist() == [0, 1, 2, 0]


def test_the_keys_of_a_compiled_policy_are_checked():
    policy = TensorDictModule(FirstAction(), ["pixels"], ["action"])
    with pytest.raises(KeyError, match=r"the policy reads .*pixels"):
        Collector(CountingEnv(), torch.compile(policy, backend="eager"), frames_per_batch=4)
