"""Soft actor-critic, against the paper's equations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_value import SACLoss, SoftUpdate

GAMMA = 0.9


def made(nets, **given):
    loss = SACLoss(nets.actor(), nets.critic(), **{"target_entropy": -1.0, **given}).double()
    loss.make_value_estimator(gamma=GAMMA)
    return nets.shaken(loss)


def reference(loss, batch, counted, weight=None, distance=torch.nn.functional.smooth_l1_loss):
    """Losses by the equations, row by row; noise in the order in which the loss draws it."""
    alpha = loss.log_alpha.exp().detach()
    dist = loss.actor_network.get_dist(batch["next"].clone())
    action = dist.rsample()
    critics = loss.target_qvalue_network.critics
    ahead = [c.module(batch["next", "observation"], action) for c in critics]
    soft = torch.minimum(*ahead) - alpha * dist.log_prob(action)[:, None]
    steps = batch.get(keys.STEPS_TO_NEXT_OBS, torch.ones(len(batch), 1, dtype=torch.int64))
    alive = ~batch["next", "terminated"]
    target = (batch["next", "reward"] + GAMMA ** steps.double() * alive * soft).detach()
    errors = [c.module(batch["observation"], batch["action"]) for c in loss.qvalue_network.critics]
    each = sum(distance(q, target, reduction="none") for q in errors)[counted]
    weight = torch.ones(len(each)) if weight is None else weight[counted]
    qvalue = (each[:, 0] * weight).sum() / weight.sum()
    dist = loss.actor_network.get_dist(batch.clone())
    action = dist.rsample()
    log_prob = dist.log_prob(action)[:, None]
    judged = [c.module(batch["observation"], action) for c in loss.qvalue_network.critics]
    return {
        "loss_actor": (alpha * log_prob - torch.minimum(*judged))[counted].mean(),
        "loss_qvalue": qvalue,
        "loss_alpha": -(loss.log_alpha * (log_prob.detach() - 1))[counted].mean(),
        "alpha": alpha,
        "entropy": -log_prob[counted].mean(),
        "td_error": torch.stack([(q - target).square() for q in errors]).amax(0).detach(),
    }


def compared(nets, loss, batch, counted, weight=None):
    actor_weights = list(loss.actor_network.parameters())
    critic_weights = list(loss.qvalue_network.parameters())
    torch.manual_seed(7)
    found = loss(batch)
    torch.manual_seed(7)
    wanted = reference(loss, batch, counted, weight)
    error = batch["td_error"]
    torch.testing.assert_close(error[counted], wanted.pop("td_error")[counted])
    assert not error[~counted].any()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)
    total = found["loss_actor"] + found["loss_qvalue"] + found["loss_alpha"]
    ours = nets.gradients(total, [*actor_weights, *critic_weights, loss.log_alpha])
    theirs = [
        *nets.gradients(wanted["loss_actor"], actor_weights),
        *nets.gradients(wanted["loss_qvalue"], critic_weights),
        *nets.gradients(wanted["loss_alpha"], [loss.log_alpha]),
    ]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_losses_and_gradients_are_those_of_the_paper(nets, lengths, data):
    size = sum(lengths)
    flags = st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor)
    batch = nets.flat(lengths, data.draw(st.integers(0, 2)))
    counted = torch.ones(size, dtype=torch.bool)
    if data.draw(st.booleans()):
        batch[keys.NEXT_MISSING] = data.draw(flags) & nets.ends_of(batch)
        counted &= ~(batch[keys.NEXT_MISSING] & ~batch["next", "terminated"][:, 0])
    if data.draw(st.booleans()):
        batch[keys.HISTORY_MISSING] = data.draw(flags)
        counted &= ~batch[keys.HISTORY_MISSING]
    weight = None
    if data.draw(st.booleans()):
        weight = batch["priority_weight"] = torch.rand(size, dtype=torch.float64) + 0.1
    if counted.any():
        compared(nets, made(nets, alpha_init=0.3), batch, counted, weight)


def test_steps_to_the_next_observation_raise_the_discount(nets):
    batch = nets.prepared(trajectories([1, 1, 1], EndKind.TRUNCATED))
    batch[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[1], [2], [3]])
    compared(nets, made(nets), batch, torch.ones(3, dtype=torch.bool))


def test_targets_by_hand(nets):
    batch = nets.prepared(
        trajectories([1, 1, 2], [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT])
    )
    batch["next", "reward"] = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double()
    loss = made(nets, alpha_init=0.5)
    with torch.no_grad():  # values 4 and 6, entropy of a normal distribution of deviation 1
        for value, one in zip((4.0, 6.0), loss.target_qvalue_network.critics, strict=True):
            one.module.zero_().bias.fill_(value)
        loss.actor_network.module[0].module.zero_()
    torch.manual_seed(0)
    loss.targets(batch)
    torch.manual_seed(0)
    noise = torch.randn(4, 2).double()  # actions are the noise: loc 0, scale 1
    log_prob = -0.5 * (noise.square().sum(-1) + 2 * torch.log(torch.tensor(2 * torch.pi)))
    found = batch["action_value_target"][:, 0]
    assert found[0] == 1.0  # terminated: what follows is worth nothing
    torch.testing.assert_close(found[1], 2.0 + GAMMA * (4 - 0.5 * log_prob[1].double()))


def test_targets_of_a_whole_batch_serve_its_parts(nets):
    batch, loss = nets.flat([3, 4, 2]), made(nets)
    batch[keys.NEXT_MISSING] = torch.arange(9) == 6
    torch.manual_seed(1)
    whole = loss(batch.clone())["loss_qvalue"]
    torch.manual_seed(1)
    stored = loss.targets(batch)
    assert stored is batch
    assert batch["action_value_target"].isnan()[:, 0].tolist() == [False] * 6 + [True] + [False] * 2
    torch.testing.assert_close(loss(batch)["loss_qvalue"], whole)
    parts = [loss(part)["loss_qvalue"] for part in (batch[:5], batch[5:])]
    torch.testing.assert_close((parts[0] * 5 + parts[1] * 3) / 8, whole)
    assert "targets: stored" in loss.explain(batch)


def test_target_networks_move_and_learn_nothing(nets):
    batch, loss = nets.flat([3, 4]), made(nets, delay_actor=True)
    out = loss(batch)
    sum(out[key] for key in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
    late = [*loss.target_qvalue_network.parameters(), *loss.target_actor_network.parameters()]
    assert all(one.grad is None for one in late)
    before = late[0].clone()
    SoftUpdate(loss, tau=0.5).step()
    torch.testing.assert_close(
        late[0], (before + next(loss.qvalue_network.parameters())).detach() / 2
    )


def test_temperatures_stay_within_their_bounds_or_fixed(nets):
    batch = nets.flat([3, 4])
    loss = made(nets, min_alpha=0.5, max_alpha=2.0, alpha_init=1.0)
    with torch.no_grad():
        loss.log_alpha.fill_(5.0)
    torch.testing.assert_close(loss(batch)["alpha"], torch.tensor(2.0).double())
    fixed = made(nets, fixed_alpha=True, alpha_init=0.25)
    out = fixed(batch)
    assert out["loss_alpha"] == 0
    torch.testing.assert_close(out["alpha"], torch.tensor(0.25).double())
    assert not any("alpha" in name for name, _ in fixed.named_parameters())


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_other_reductions_keep_the_steps_apart(reduction, nets):
    batch = nets.flat([3, 4])
    batch[keys.MASK] = torch.arange(7) != 4
    torch.manual_seed(0)
    mean = made(nets)(batch)
    loss = made(nets, reduction=reduction)
    torch.manual_seed(0)
    found = loss(batch)
    assert found["loss_qvalue"].shape == (() if reduction == "sum" else (7, 1))
    assert mean["loss_actor"].shape == ()
