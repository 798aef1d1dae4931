import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, set_skip_existing
from torch import nn
from torch.testing import assert_close

from rl_policies import MLP, ValueOperator


def rows():
    return TensorDict({"observation": torch.randn(5, 3), "action": torch.randn(5, 2)}, [5])


def test_state_value_ends_in_a_singleton_dimension():
    net, batch = nn.Linear(3, 1), rows()
    critic = ValueOperator(net)
    assert critic(batch) is batch
    assert_close(batch["state_value"], net(batch["observation"]))
    assert batch["state_value"].shape == (5, 1)


def test_state_action_value_has_its_own_key():
    critic = ValueOperator(MLP(out_features=1, depth=1), in_keys=["observation", "action"])
    assert critic.out_keys == ["state_action_value"]
    assert ValueOperator(nn.Linear(3, 1), in_keys=[("agents", "action")]).out_keys == [
        "state_action_value"
    ]
    assert critic(rows())["state_action_value"].shape == (5, 1)


def test_module_and_step_and_tensordict_agree():
    net, batch = nn.Linear(3, 1), rows()
    stock = TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])
    critic, wanted = ValueOperator(net), stock(batch.clone())["state_value"]
    assert_close(critic(batch.clone())["state_value"], wanted)
    assert_close(critic.step(batch["observation"])[0], wanted)
    assert_close(critic(batch["observation"]), wanted)


def test_critic_writes_several_values():
    critic = ValueOperator(lambda x: (x[:, :1], x[:, 1:2]), out_keys=["one", ("two", "value")])
    batch = critic(rows())
    assert_close(batch["two", "value"], batch["observation"][:, 1:2])


def test_skip_existing_skips_the_critic():
    batch = rows().set("state_value", torch.full((5, 1), 7.0))
    with set_skip_existing(True):
        assert (ValueOperator(nn.Linear(3, 1))(batch)["state_value"] == 7).all()


def test_squeezed_value_raises():
    with pytest.raises(ValueError, match=r"'state_value' must end .* \(5,\) for a batch \(5,\)"):
        ValueOperator(lambda x: x[:, 0])(rows())


def test_missing_observation_error_names_the_key():
    with pytest.raises(KeyError, match="'pixels' is missing: there are observation, action"):
        ValueOperator(nn.Linear(3, 1), in_keys=["pixels"])(rows())


def test_too_many_outputs_raise():
    with pytest.raises(ValueError, match=r"each of .*'state_value'.* returned 2"):
        ValueOperator(lambda x: (x, x))(rows())


def test_a_step_lists_the_network_itself():
    critic = ValueOperator(torch.nn.Linear(3, 1))
    ((call, read, written),) = critic.step_calls()
    assert (call, read, written) == (critic.module, ["observation"], ["state_value"])


def test_a_step_of_a_subclass_is_listed_as_it_is():
    class Doubled(ValueOperator):
        def step(self, *tensors):
            return (2 * super().step(*tensors)[0],)

    critic = Doubled(torch.nn.Linear(3, 1))
    ((call, _, _),) = critic.step_calls()
    x = torch.ones(2, 3)
    assert torch.equal(call(x)[0], 2 * critic.module(x))
