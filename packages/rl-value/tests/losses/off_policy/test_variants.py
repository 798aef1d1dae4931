"""REDQ, CrossQ and choices, against the papers' equations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule
from torch.nn.functional import smooth_l1_loss

from rl_layout import keys
from rl_value import CrossQLoss, DiscreteSACLoss, REDQLoss, SACLoss

GAMMA = 0.9
LENGTHS = {
    "lengths": st.lists(st.integers(1, 5), min_size=1, max_size=5),
    "turn": st.integers(0, 2),
}


def compare(found, wanted, parts, nets):
    """Losses, and the gradients of each in the networks that learn from it."""
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)
    for name, weights in parts.items():
        ours = nets.gradients(sum(found[key] for key in parts), weights)
        torch.testing.assert_close(
            ours, nets.gradients(wanted[name], weights), rtol=1e-9, atol=1e-9
        )


@settings(deadline=None, max_examples=15)
@given(**LENGTHS)
def test_redq_takes_the_least_of_some_critics(nets, lengths, turn):
    batch, given = nets.flat(lengths, turn), {"target_entropy": -1.0, "num_qvalue_nets": 5}
    loss = REDQLoss(nets.actor(), nets.critic(), sub_sample_len=3, **given).double()
    nets.shaken(loss.make_value_estimator(gamma=GAMMA))
    torch.manual_seed(3)
    found = loss(batch)
    torch.manual_seed(3)
    alpha = loss.log_alpha.exp().detach()
    dist = loss.actor_network.get_dist(batch["next"].clone())
    action = dist.rsample()
    late = [
        c.module(batch["next", "observation"], action) for c in loss.target_qvalue_network.critics
    ]
    some = torch.randperm(5)[:3].tolist()
    worth = torch.stack([late[i] for i in some]).amin(0) - alpha * dist.log_prob(action)[:, None]
    alive = (~batch["next", "terminated"]).double()
    target = (batch["next", "reward"] + GAMMA * alive * worth).detach()
    dist = loss.actor_network.get_dist(batch.clone())
    action = dist.rsample()
    critics = loss.qvalue_network.critics
    judged = torch.stack([c.module(batch["observation"], action) for c in critics])
    values = [c.module(batch["observation"], batch["action"]) for c in critics]
    wanted = {
        "loss_actor": (alpha * dist.log_prob(action)[:, None] - judged.mean(0)).mean(),
        "loss_qvalue": sum(smooth_l1_loss(value, target) for value in values),
    }
    actor, critic = (list(n.parameters()) for n in (loss.actor_network, loss.qvalue_network))
    compare(found, wanted, {"loss_actor": actor, "loss_qvalue": critic}, nets)


def test_redq_holds_its_subset_to_the_critics_there_are(nets):
    with pytest.raises(ValueError, match="sub_sample_len=4, and there are 3 critics"):
        REDQLoss(
            nets.actor(), nets.critic(), num_qvalue_nets=3, sub_sample_len=4, target_entropy=-1.0
        )


class Normed(torch.nn.Module):
    """A critic with a batch norm."""

    def __init__(self, size):
        super().__init__()
        self.norm, self.last = torch.nn.BatchNorm1d(size), torch.nn.Linear(size, 1)

    def forward(self, observation, action):
        return self.last(self.norm(torch.cat([observation, action], -1)))


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=5), turn=st.integers(0, 2))
def test_crossq_normalises_steps_and_next_states_together(nets, lengths, turn):
    batch = nets.flat(lengths, turn)
    net = TensorDictModule(Normed(2 + nets.SIZE), ["observation", "action"], ["state_action_value"])
    loss = CrossQLoss(nets.actor(), net, target_entropy=-1.0).double()
    loss.make_value_estimator(gamma=GAMMA)
    assert loss.target_qvalue_network is None
    before = [c.module.norm.running_mean.clone() for c in loss.qvalue_network.critics]
    torch.manual_seed(3)
    found = loss(batch)
    means = [c.module.norm.running_mean.clone() for c in loss.qvalue_network.critics]
    torch.manual_seed(3)
    alpha, size = loss.log_alpha.exp().detach(), len(batch)
    dist = loss.actor_network.get_dist(batch["next"].clone())
    action = dist.rsample()
    seen = torch.cat([batch["observation"], batch["next", "observation"]])
    did = torch.cat([batch["action"], action.detach()])
    both = []
    for critic in loss.qvalue_network.critics:
        mean, spread = (f(torch.cat([seen, did], -1)) for f in (of_mean, of_spread))
        unit = (torch.cat([seen, did], -1) - mean) / (spread + 1e-5).sqrt()
        norm = critic.module.norm
        both.append(critic.module.last(unit * norm.weight + norm.bias))
    worth = torch.minimum(*[b[size:] for b in both]) - alpha * dist.log_prob(action)[:, None]
    alive = (~batch["next", "terminated"]).double()
    target = (batch["next", "reward"] + GAMMA * alive * worth).detach()
    dist = loss.actor_network.get_dist(batch.clone())
    action = dist.rsample()
    loss.eval()  # the actor's loss reads the running statistics
    judged = [c.module(batch["observation"], action) for c in loss.qvalue_network.critics]
    wanted = {
        "loss_actor": (alpha * dist.log_prob(action)[:, None] - torch.minimum(*judged)).mean(),
        "loss_qvalue": sum(smooth_l1_loss(b[:size], target) for b in both),
    }
    actor, critic = (list(n.parameters()) for n in (loss.actor_network, loss.qvalue_network))
    compare(found, wanted, {"loss_actor": actor, "loss_qvalue": critic}, nets)
    for old, new in zip(before, means, strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * torch.cat([seen, did], -1).mean(0))


def of_mean(rows):
    return rows.mean(0)


def of_spread(rows):
    return rows.var(0, correction=0)


@settings(deadline=None, max_examples=15)
@given(**LENGTHS)
def test_choices_are_summed_over(nets, lengths, turn):
    batch = nets.flat(lengths, turn)
    batch["action"] = torch.randint(3, (len(batch),))
    given = {"num_actions": 3, "action_space": "categorical", "alpha_init": 0.7}
    loss = DiscreteSACLoss(nets.chooser(), nets.action_critic(), **given).double()
    nets.shaken(loss.make_value_estimator(gamma=GAMMA))
    found = loss(batch)
    alpha, wanted_entropy = loss.log_alpha.exp().detach(), 0.98 * torch.tensor(3.0).double().log()
    now, after = (
        loss.actor_network[0].module(seen).softmax(-1)
        for seen in (batch["observation"], batch["next", "observation"])
    )
    late = [c.module(batch["next", "observation"]) for c in loss.target_qvalue_network.critics]
    worth = (after * (torch.minimum(*late) - alpha * after.log())).sum(-1, keepdim=True)
    alive = (~batch["next", "terminated"]).double()
    target = (batch["next", "reward"] + GAMMA * alive * worth).detach()
    values = [c.module(batch["observation"]) for c in loss.qvalue_network.critics]
    taken = [v[torch.arange(len(batch)), batch["action"], None] for v in values]
    least = torch.minimum(*values).detach()
    entropy = -(now * now.log()).sum(-1)
    wanted = {
        "loss_actor": (now * (alpha * now.log() - least)).sum(-1).mean(),
        "loss_qvalue": sum(smooth_l1_loss(q, target) for q in taken),
        "loss_alpha": (loss.log_alpha * (entropy.detach() - wanted_entropy)).mean(),
        "entropy": entropy.mean(),
    }
    torch.testing.assert_close(loss.target_entropy, wanted_entropy, atol=1e-6, rtol=0)
    wanted["loss_alpha"] = (loss.log_alpha * (entropy.detach() - loss.target_entropy)).mean()
    actor, critic = (list(n.parameters()) for n in (loss.actor_network, loss.qvalue_network))
    parts = {"loss_actor": actor, "loss_qvalue": critic, "loss_alpha": [loss.log_alpha]}
    compare(found, wanted, parts, nets)
    assert not batch["td_error"].isnan().any()


def test_choices_that_are_ruled_out_have_no_part(nets):
    batch = nets.flat([3, 4])
    batch["action"] = torch.zeros(7, dtype=torch.int64)
    loss = DiscreteSACLoss(
        nets.chooser(), nets.action_critic(), num_actions=3, action_space="categorical"
    ).double()
    with torch.no_grad():
        loss.actor_network[0].module.bias[2] = -torch.inf
    out = loss(batch)
    sum(out[key] for key in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
    slope = loss.actor_network[0].module.weight.grad
    assert slope.isfinite().all()
    assert slope[:2].any()


def test_droq_draws_dropout_for_each_critic(nets):
    class Dropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

        def forward(self, observation, action):
            return self.net(torch.cat([observation, action], -1))

    net = TensorDictModule(Dropped(), ["observation", "action"], ["state_action_value"])
    loss = REDQLoss(nets.actor(), net, num_qvalue_nets=2, target_entropy=-1.0).double()
    first, second = (loss.targets(nets.flat([3, 4])) for _ in range(2))
    batch = nets.flat([3, 4])
    batch[keys.MASK] = torch.ones(7, dtype=torch.bool)
    torch.manual_seed(0)
    one = loss(batch)["loss_qvalue"]
    assert one != loss(batch)["loss_qvalue"]
    assert first["action_value_target"].shape == second["action_value_target"].shape


def test_a_compact_batch_leaves_out_what_it_cannot_know(nets):
    batch = nets.flat([3, 4, 2])
    loss = SACLoss(nets.actor(nets.still), nets.critic(), target_entropy=-1.0).double()
    whole = loss(batch)["loss_qvalue"]
    compact = batch.exclude(("next", "observation"))
    loss(compact)
    error = compact["td_error"][:, 0]
    lost = torch.tensor([0, 0, 0, 0, 0, 0, 1, 0, 1]).bool()  # the first one terminated
    assert torch.equal(compact[keys.NEXT_MISSING] & ~compact["next", "terminated"][:, 0], lost)
    torch.testing.assert_close(error[~lost], batch["td_error"][~lost, 0])
    assert whole.isfinite()
