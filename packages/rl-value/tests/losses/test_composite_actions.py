"""Losses of actions of several parts, and of distributions without formulas."""

import math

import pytest
import torch
from tensordict import TensorDict
from torch import distributions as d

from rl_layout.testing import EndKind
from rl_value import (
    A2CLoss,
    KLPENPPOLoss,
    PPOLoss,
    VTrace,
    vtrace,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def test_the_divergence_is_penalised_and_its_weight_adapts(
    continuous_actor, linear_critic, flat_batch, masked
):
    batch, actor, net = flat_batch(), continuous_actor(), linear_critic()
    counted = masked(batch)
    batch["action"] = torch.randn(9, 2, dtype=torch.float64)
    batch["loc"] = torch.randn(9, 2, dtype=torch.float64)
    batch["scale"] = torch.rand(9, 2, dtype=torch.float64) + 0.5
    mean = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    ratio = batch["scale"] / mean.exp()
    moved = (batch["loc"] - mean) / mean.exp()
    kl = ((ratio**2 + moved**2 - 1) / 2 - ratio.log()).sum(-1)[counted].mean()
    kl_number = kl.item()
    plain = PPOLoss(actor, net)(batch)
    for dtarg, factor in ((kl_number / 2, 2.0), (kl_number * 2, 0.5), (kl_number, 1.0)):
        loss = KLPENPPOLoss(actor, net, beta=3.0, dtarg=dtarg)
        found = loss(batch)
        torch.testing.assert_close(found["kl"], kl.detach())
        torch.testing.assert_close(found["loss_objective"], plain["loss_objective"] + 3 * kl)
        assert found["beta"] == 3
        assert loss.beta == 3 * factor
        loss.reset()
        assert loss.beta == 3
    assert set(found.keys()) == {*loss.out_keys, "beta", "kl_approx", "explained_variance"}
    with pytest.raises(KeyError, match="'scale' is missing: the divergence"):
        loss(batch.exclude("scale"))
    with pytest.raises(ValueError, match="expected increment >= 1"):
        KLPENPPOLoss(actor, net, increment=0.5)


def test_a_distribution_without_formulas_is_sampled(continuous_actor, linear_critic, flat_batch):
    class Opaque(d.Normal):
        def entropy(self):
            raise NotImplementedError

    batch, net = flat_batch(), linear_critic()
    actor = continuous_actor()
    actor[2].distribution_class = lambda loc, scale: Opaque(loc, scale)
    batch["action"] = torch.randn(9, 2, dtype=torch.float64)
    batch["sample_log_prob"] = torch.zeros(9, 2, dtype=torch.float64)
    batch["advantage"] = torch.randn(9, 2, 1, dtype=torch.float64)
    found = PPOLoss(actor, net, samples_mc_entropy=20_000)(batch)
    mean = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    exact = (mean + 0.5 + 0.5 * math.log(2 * math.pi)).mean()  # of a normal, scale exp(mean)
    torch.testing.assert_close(found["entropy"], exact.detach(), atol=0.02, rtol=0)  # 1 / √20,000


@pytest.mark.parametrize("stored", ["one", "heads"])
def test_losses_of_composite_actions_sum_their_heads(
    stored, composite, linear_critic, flat_batch, masked
):
    batch, actor, net = flat_batch().exclude("action"), composite(), linear_critic()
    counted = masked(batch)
    batch["act"] = TensorDict(
        {"a": torch.randint(3, (9,)), "b": torch.randn(9, 2, dtype=torch.float64)}, [9]
    )
    if stored == "heads":
        old = batch["sample_log_prob"]
        batch["act", "a_log_prob"] = old / 4
        batch["act", "b_log_prob"] = torch.stack([old / 2, old / 4], -1)
        batch = batch.exclude("sample_log_prob")
    else:
        old = batch["sample_log_prob"]
    h = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    a, b = d.Categorical(logits=h[:, :3]), d.Normal(h[:, 3:5], h[:, 5:].exp())
    now = a.log_prob(batch["act", "a"]) + b.log_prob(batch["act", "b"]).sum(-1)
    gain = ((now - old).exp() * batch["advantage"][:, 0])[counted].mean()
    coefficients = {("act", "a"): 0.1, ("act", "b"): 0.3}
    found = PPOLoss(actor, net, entropy_coeff=coefficients)(batch)
    torch.testing.assert_close(found["loss_objective"], -gain)
    heads = a.entropy()[counted].mean(), b.entropy().sum(-1)[counted].mean()
    torch.testing.assert_close(found["entropy"], (heads[0] + heads[1]).detach())
    torch.testing.assert_close(found["loss_entropy"], -0.1 * heads[0] - 0.3 * heads[1])
    with pytest.raises(KeyError, match="entropy_coeff has no number for"):
        PPOLoss(actor, net, entropy_coeff={("act", "a"): 0.1})(batch)
    gone = batch.exclude("sample_log_prob", ("act", "b_log_prob"))
    with pytest.raises(KeyError, match=r"log_prob.* is missing"):
        PPOLoss(actor, net)(gone)


@pytest.mark.parametrize("stored", ["one", "heads"])
def test_vtrace_takes_composite_actions(stored, composite, linear_critic, flat_batch):
    batch, actor, net = flat_batch().exclude("action"), composite(), linear_critic()
    batch["act"] = TensorDict(
        {"a": torch.randint(3, (9,)), "b": torch.randn(9, 2, dtype=torch.float64)}, [9]
    )
    h = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    a, b = d.Categorical(logits=h[:, :3]), d.Normal(h[:, 3:5], h[:, 5:].exp())
    now = a.log_prob(batch["act", "a"]) + b.log_prob(batch["act", "b"]).sum(-1)
    ratio = (now - batch["sample_log_prob"]).detach()[:, None]
    if stored == "heads":
        old = batch.pop("sample_log_prob")
        batch["act", "a_log_prob"] = old / 4
        batch["act", "b_log_prob"] = torch.stack([old / 2, old / 4], -1)
    estimator = VTrace(gamma=0.9, actor_network=actor, value_network=net)
    found = estimator(batch)
    values = batch["next", "reward"], found["state_value"], found["next", "state_value"]
    ends = batch["is_init"].roll(-1, 0)
    expected = vtrace(*values, ratio, batch["next", "terminated"], ends, gamma=0.9)
    torch.testing.assert_close((found["advantage"], found["value_target"]), expected)


def test_an_action_that_requires_gradients_is_refused(continuous_actor, linear_critic, flat_batch):
    batch = flat_batch()
    batch["action"] = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="a stored action is a constant"):
        A2CLoss(continuous_actor(), linear_critic())(batch)


def test_a_key_of_one_part_may_be_a_tuple(linear_critic, discrete_actor, flat_batch):
    loss = PPOLoss(discrete_actor(), linear_critic(), entropy_coeff={("action",): 0.5})
    found = loss(flat_batch())
    torch.testing.assert_close(found["loss_entropy"], -0.5 * found["entropy"])
