"""Losses from stored steps alone, against the papers' equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, mse_loss, smooth_l1_loss

from rl_layout import keys
from rl_value import BCLoss, CQLLoss, DiscreteCQLLoss, IQLLoss, TD3BCLoss

GAMMA = 0.9
LENGTHS = {
    "lengths": st.lists(st.integers(1, 5), min_size=1, max_size=5),
    "turn": st.integers(0, 2),
}
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def alive(batch):
    return (~batch["next", "terminated"]).double()


def compare(found, wanted, parts, nets):
    """Losses, and the gradients of their sum."""
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, **EXACT)
    for names, weights in parts:
        total = sum(value for key, value in found.items() if key.startswith("loss_"))
        theirs = nets.gradients(sum(wanted[name] for name in names), weights)
        torch.testing.assert_close(nets.gradients(total, weights), theirs, **EXACT)


@settings(deadline=None, max_examples=20)
@given(**LENGTHS)
def test_iql_is_the_paper(nets, lengths, turn):
    batch = nets.flat(lengths, turn)
    made = IQLLoss(nets.actor(), nets.critic(), nets.state_critic(), expectile=0.8, temperature=3.0)
    loss = nets.shaken(made.double().make_value_estimator(gamma=GAMMA))
    found = loss(batch)
    seen, did = batch["observation"], batch["action"]
    value = loss.value_network.module(seen)
    ahead = loss.value_network.module(batch["next", "observation"])
    target = (batch["next", "reward"] + GAMMA * alive(batch) * ahead).detach()
    late = [c.module(seen, did) for c in loss.target_qvalue_network.critics]
    surplus = torch.minimum(*late).detach() - value
    weight = torch.where(surplus < 0, 0.2, 0.8)
    better = (3.0 * surplus.detach()).exp().clamp(max=100.0)
    log_prob = loss.actor_network.get_dist(batch.clone()).log_prob(did)[:, None]
    values = [c.module(seen, did) for c in loss.qvalue_network.critics]
    wanted = {
        "loss_actor": -(better * log_prob).mean(),
        "loss_qvalue": sum(smooth_l1_loss(q, target) for q in values),
        "loss_value": (weight * surplus.square()).mean(),
        "entropy": -log_prob.mean(),
    }
    networks = loss.actor_network, loss.qvalue_network, loss.value_network
    names = ["loss_actor"], ["loss_qvalue"], ["loss_value"]
    parts = [(n, list(net.parameters())) for n, net in zip(names, networks, strict=True)]
    compare(found, wanted, parts, nets)


def test_weights_of_better_actions_are_bounded(nets):
    batch = nets.flat([3, 4])
    loss = IQLLoss(nets.actor(), nets.critic(), nets.state_critic(), temperature=1e6).double()
    with torch.no_grad():
        for one in loss.target_qvalue_network.critics:
            one.module.bias.add_(50.0)
    assert loss(batch)["loss_actor"].isfinite()


@settings(deadline=None, max_examples=20)
@given(**LENGTHS)
def test_cql_is_the_paper(nets, lengths, turn):
    batch, size, t = nets.flat(lengths, turn), sum(lengths), 0.7
    made = CQLLoss(
        nets.actor(),
        nets.critic(),
        action_spec=nets.Spec(-1.0, 2.0),
        num_random=3,
        temperature=t,
        min_q_weight=2.0,
    )
    loss = nets.shaken(made.double().make_value_estimator(gamma=GAMMA))
    torch.manual_seed(5)
    found = loss(batch)
    torch.manual_seed(5)
    action = loss.actor_network.get_dist(batch["next"].clone()).rsample()
    late = [
        c.module(batch["next", "observation"], action) for c in loss.target_qvalue_network.critics
    ]
    target = (batch["next", "reward"] + GAMMA * alive(batch) * torch.minimum(*late)).detach()
    dist = loss.actor_network.get_dist(batch.clone())
    dist.rsample()  # of the actor's loss
    own = dist.rsample((3,)).detach()
    even = -1 + 3 * torch.rand(3, size, nets.SIZE, dtype=torch.float64)
    gap = qvalue = 0.0
    for critic in loss.qvalue_network.critics:
        q = critic.module(batch["observation"], batch["action"])
        qvalue = qvalue + smooth_l1_loss(q, target)
        total = 0.0
        for b in even:
            total = total + (critic.module(batch["observation"], b)[:, 0] / t).exp() * 3**2
        for b in own:
            density = dist.log_prob(b).exp().detach()
            total = total + (critic.module(batch["observation"], b)[:, 0] / t).exp() / density
        gap = gap + (t * (total / 6).log() - q[:, 0]).mean()
    wanted = {"loss_qvalue": qvalue, "loss_cql": 2.0 * gap}
    weights = list(loss.qvalue_network.parameters())
    compare(found, wanted, [(["loss_qvalue", "loss_cql"], weights)], nets)


def test_a_learned_factor_holds_the_gap_at_its_threshold(nets):
    batch, given = nets.flat([3, 4]), {"action_spec": nets.Spec(), "num_random": 4}
    plain = CQLLoss(nets.actor(), nets.critic(), **given).double()
    loss = CQLLoss(
        nets.actor(), nets.critic(), with_lagrange=True, lagrange_thresh=0.5, **given
    ).double()
    loss.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        loss.log_alpha_prime.fill_(math.log(3.0))
    torch.manual_seed(0)
    gap = plain(batch)["loss_cql"]
    torch.manual_seed(0)
    found = loss(batch)
    torch.testing.assert_close(found["loss_cql"], 3.0 * (gap - 0.5))
    torch.testing.assert_close(found["loss_alpha_prime"].detach(), -3.0 * (gap - 0.5).detach())
    (slope,) = nets.gradients(found["loss_alpha_prime"], [loss.log_alpha_prime])
    torch.testing.assert_close(slope, -3.0 * (gap - 0.5).detach())


@settings(deadline=None, max_examples=20)
@given(**LENGTHS)
def test_cql_of_choices_is_cross_entropy_and_q_learning(nets, lengths, turn):
    batch = nets.flat(lengths, turn)
    batch["action"] = torch.randint(3, (len(batch),))
    made = DiscreteCQLLoss(nets.action_critic(), action_space="categorical", min_q_weight=0.3)
    loss = nets.shaken(made.double().make_value_estimator(gamma=GAMMA))
    found = loss(batch)
    values = loss.value_network.module(batch["observation"])
    ahead = loss.target_value_network.module(batch["next", "observation"]).amax(-1, keepdim=True)
    target = (batch["next", "reward"] + GAMMA * alive(batch) * ahead).detach()
    taken = values[torch.arange(len(batch)), batch["action"], None]
    wanted = {
        "loss_qvalue": mse_loss(taken, target),
        "loss_cql": 0.3 * cross_entropy(values, batch["action"]),
    }
    weights = list(loss.value_network.parameters())
    compare(found, wanted, [(["loss_qvalue", "loss_cql"], weights)], nets)


@settings(deadline=None, max_examples=20)
@given(**LENGTHS)
def test_td3_bc_holds_the_actor_to_stored_actions(nets, lengths, turn):
    batch = nets.flat(lengths, turn)
    bounds = {"bounds": (-1.0, 1.0), "policy_noise": 0.0, "alpha": 1.5}
    loss = TD3BCLoss(nets.deterministic(), nets.critic(), **bounds).double()
    found = loss(batch)
    action = loss.actor_network.module(batch["observation"])
    q = loss.qvalue_network.critics[0].module(batch["observation"], action)
    lmbd = 1.5 / q.abs().mean().detach()
    cloned = mse_loss(action, batch["action"])
    wanted = {"loss_actor": cloned - lmbd * q.mean(), "bc_loss": cloned.detach(), "lmbd": lmbd}
    weights = list(loss.actor_network.parameters())
    compare(found, wanted, [(["loss_actor"], weights)], nets)


@settings(deadline=None, max_examples=20)
@given(**LENGTHS)
def test_cloning_is_likelihood_or_distance(nets, lengths, turn):
    batch = nets.flat(lengths, turn)
    batch["priority_weight"] = torch.rand(len(batch), dtype=torch.float64) + 0.1
    batch[keys.HISTORY_MISSING] = torch.arange(len(batch)) == 1
    weight = batch["priority_weight"] * ~batch[keys.HISTORY_MISSING]
    loss = BCLoss(nets.actor()).double()
    cost = -loss.actor_network.get_dist(batch.clone()).log_prob(batch["action"])
    found, wanted = loss(batch)["loss_bc"], (cost * weight).sum() / weight.sum()
    torch.testing.assert_close(found, wanted, **EXACT)
    weights = list(loss.parameters())
    torch.testing.assert_close(*(nets.gradients(one, weights) for one in (found, wanted)), **EXACT)
    loss = BCLoss(nets.deterministic(), loss_function="l1").double()
    made = loss.actor_network.module(batch["observation"])
    cost = (made - batch["action"]).abs().sum(-1)
    wanted = (cost * weight).sum() / weight.sum()
    torch.testing.assert_close(loss(batch)["loss_bc"], wanted, **EXACT)


def test_actions_that_the_actor_cannot_take_are_not_cloned(nets):
    actor, batch = nets.actor(), nets.flat([3, 2])
    batch["action"][4, 1] = 1.5
    batch["action"][1:3, 1] = torch.tensor([-1.00001, 1.00001])  # a rounding beyond them is none
    assert BCLoss(actor).double()(batch)["loss_bc"].isfinite()  # its spec is not known
    actor.spec = nets.Spec()
    loss = BCLoss(actor).double()
    with pytest.raises(ValueError, match=r"'action' is outside of its spec in 1 of 5.*\(4,\)"):
        loss(batch)
    batch[keys.HISTORY_MISSING] = torch.arange(5) == 4  # it does not count
    loss(batch)
