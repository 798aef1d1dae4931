from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_interaction_type,
)
from torch import nn

from rl_policies import (
    Actor,
    ActorValueOperator,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)


def common():
    return TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"])


def one_hot():
    net = TensorDictModule(nn.Linear(4, 5), ["hidden"], ["logits"])
    return ProbabilisticActor(
        net, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )


def tanh():
    net = nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    module = TensorDictModule(net, ["hidden"], ["loc", "scale"])
    return ProbabilisticActor(
        module, ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )


POLICIES = {
    "one-hot": one_hot,
    "tanh": tanh,
    "actor": lambda: Actor(nn.Linear(4, 2), ["hidden"]),
    "values": lambda: QValueActor(nn.Linear(4, 5), in_keys=["hidden"], action_space="categorical"),
}


def operator(policy="one-hot"):
    torch.manual_seed(0)
    value = ValueOperator(nn.Linear(4, 1), ["hidden"])
    return ActorValueOperator(common(), POLICIES[policy](), value)


def rows(count=6):
    return TensorDict({"observation": torch.randn(count, 3)}, [count])


def written(module, batch, by_step=False):
    """What a module adds to a batch, from one state of the generator."""
    torch.manual_seed(7)
    with torch.no_grad():
        if by_step:
            made = module.step(batch["observation"])
            return dict(zip(module.out_keys, made, strict=True))
        out = module(batch.clone())
    return {key: out[key] for key in module.out_keys}


@pytest.mark.parametrize("kind", [InteractionType.RANDOM, InteractionType.DETERMINISTIC])
@pytest.mark.parametrize("name", POLICIES)
def test_operators_write_the_outputs_of_the_whole(name, kind):
    both, batch = operator(name), rows()
    with set_interaction_type(kind):
        whole = written(both, batch)
        policy = written(both.get_policy_operator(), batch)
        value = written(both.get_value_operator(), batch)
        plain = batch.clone()
        torch.manual_seed(7)
        with torch.no_grad():
            for module in both.module:
                plain = module(plain)
    assert {**policy, **value}.keys() == whole.keys()
    assert value.keys() == {"hidden", "state_value"}
    assert "state_value" not in policy
    for found in (policy, value, {key: plain[key] for key in whole}):
        assert all(torch.equal(found[key], whole[key]) for key in found)


@pytest.mark.parametrize("name", POLICIES)
def test_step_draws_what_the_module_draws(name):
    both, batch = operator(name), rows()
    with set_interaction_type(InteractionType.RANDOM):
        for module in (both, both.get_policy_operator(), both.get_value_operator()):
            one, other = written(module, batch), written(module, batch, by_step=True)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)


def test_step_calls_are_the_networks():
    both = operator()
    calls = [call for call, *_ in both.step_calls()]
    shared, policy, value = both.module
    assert calls[:2] == [shared.module, policy.module[0].module]
    assert calls[-1] == value.step
    assert [call for call, *_ in both.get_policy_operator().step_calls()][:2] == calls[:2]


def test_operators_share_parameters():
    both = operator()
    found = [*both.get_policy_operator().parameters(), *both.get_value_operator().parameters()]
    assert {id(one) for one in found} == {id(one) for one in both.parameters()}
    assert len(found) == len(list(both.parameters())) + 2  # the shared layer is in both
    assert both.get_policy_head() is both.module[1]
    assert both.get_value_head() is both.module[2]


def test_policy_operator_gives_a_loss_distribution_and_gradient():
    both, batch = operator(), rows()
    policy = both.get_policy_operator()
    with set_interaction_type(InteractionType.RANDOM), torch.no_grad():
        policy(batch)
    dist = policy.get_dist(batch.select("observation"))
    log_prob = dist.log_prob(batch["action"])
    assert torch.equal(log_prob.detach(), batch["sample_log_prob"])
    assert "value" not in " ".join(batch.keys())
    (log_prob.mean() + both.get_value_operator()(rows())["state_value"].mean()).backward()
    assert all(parameter.grad is not None for parameter in both.parameters())


def test_policy_of_tensordict_keeps_its_distribution():
    sampling = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=OneHotCategorical
    )
    net = TensorDictModule(nn.Linear(4, 5), ["hidden"], ["logits"])
    policy = ProbabilisticTensorDictSequential(net, sampling)
    both = ActorValueOperator(common(), policy, ValueOperator(nn.Linear(4, 1), ["hidden"]))
    found = both.get_policy_operator()
    assert found.get_dist(rows()).probs.shape == (6, 5)
    batch = both(rows())
    assert batch["action"].shape == (6, 5)
    assert batch["state_value"].shape == (6, 1)


def test_copy_shares_no_parameters():
    both, batch = operator(), rows()
    policy = both.get_policy_operator()
    written(policy, batch, by_step=True)
    other = copy.deepcopy(policy)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    assert (written(other, batch, by_step=True)["logits"] == 0).all()
    assert (written(policy, batch, by_step=True)["logits"] != 0).any()


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ((nn.Linear(3, 4), one_hot(), common()), TypeError, "common_operator must be .* Linear"),
        ((common(), nn.Linear(4, 2), common()), TypeError, "policy_operator must be .* Linear"),
        (
            (common(), one_hot(), ValueOperator(nn.Linear(3, 1))),
            ValueError,
            r"value_operator reads \['observation'\], .*: \['hidden'\]",
        ),
    ],
)
def test_wrong_parts_raise(parts, error, message):
    with pytest.raises(error, match=message):
        ActorValueOperator(*parts)


def test_slice_is_a_sequence_of_the_parts():
    both, batch = operator(), rows()
    head = both[:2]
    assert [*head.module] == [both.module[0], *both.module[1].module]
    with set_interaction_type(InteractionType.RANDOM):
        found, wanted = written(head, batch), written(both.get_policy_operator(), batch)
    assert torch.equal(found["action"], wanted["action"])
    assert head.get_dist(batch.clone()).probs.shape == (6, 5)
    assert both[::2].out_keys == ["hidden", "state_value"]
    assert both[0] is both.module[0]


@pytest.mark.parametrize("name", ["one-hot", "tanh", "values"])
@pytest.mark.parametrize("part", [slice(1), slice(1, None), slice(None)])
def test_policies_split_into_their_parts(name, part):
    policy = POLICIES[name]()
    assert [*policy[part].module] == [*policy.module[part]]


@pytest.mark.parametrize("name", ["one-hot", "tanh"])
def test_select_subsequence_chooses_parts_by_their_outputs(name):
    policy = POLICIES[name]()
    wanted = policy.module[0].out_keys
    assert policy.select_subsequence(out_keys=wanted).out_keys == wanted
