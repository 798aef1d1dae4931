import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_policies import DistributionalQValueActor, DistributionalQValueModule
from rl_specs import Categorical, OneHot

SUPPORT = torch.linspace(-1, 1, 5)


def actor(**options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 20), nn.Unflatten(-1, (5, 4)))
    return DistributionalQValueActor(net, SUPPORT, **options)


def rows(*sizes):
    torch.manual_seed(1)
    return TensorDict({"observation": torch.randn(*sizes, 3)}, sizes)


@pytest.mark.parametrize("sizes", [(), (7,), (2, 7)])
def test_the_action_has_the_highest_mean_return(sizes):
    one = actor(spec=Categorical(4))
    found = one(rows(*sizes))
    probs = one.module[0].module(rows(*sizes)["observation"]).softmax(-2)
    means = torch.einsum("...ij,i->...j", probs, SUPPORT)
    assert torch.equal(found["action"], means.argmax(-1))
    torch.testing.assert_close(found["chosen_action_value"], means.max(-1, keepdim=True).values)
    torch.testing.assert_close(found["action_value"].exp(), probs)
    assert found["action"].shape == sizes


def test_one_hot_actions_and_masks():
    one = actor(spec=OneHot(4), action_mask_key="mask")
    mask = torch.eye(4, dtype=torch.bool)
    found = one(rows(4).set("mask", mask))
    assert torch.equal(found["action"], mask)
    assert one.spec == OneHot(4)
    assert (one.action_space, one.support is one[-1].support) == ("one_hot", True)


def test_log_probabilities_may_be_the_networks_own():
    net = nn.Sequential(nn.Linear(3, 20), nn.Unflatten(-1, (5, 4)), nn.LogSoftmax(-2))
    given = TensorDictModule(net, ["observation"], ["action_value"])
    plain = DistributionalQValueActor(given, SUPPORT, spec=OneHot(4), make_log_softmax=False)
    again = DistributionalQValueActor(given, SUPPORT, spec=OneHot(4))
    assert len(plain.module) == 2
    torch.testing.assert_close(plain(rows(6))["action_value"], again(rows(6))["action_value"])


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="support: expected a tensor of returns"):
        DistributionalQValueModule("one_hot", [0.0, 1.0])
    with pytest.raises(ValueError, match="support: expected returns"):
        DistributionalQValueModule("one_hot", torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"expected log-probabilities \[\*B, 5, n\]"):
        DistributionalQValueModule("one_hot", SUPPORT).step(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="must write 'action_value'"):
        DistributionalQValueActor(TensorDictModule(nn.Identity(), ["a"], ["b"]), SUPPORT)
