"""Deterministic actors, against the papers' equations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import mse_loss, smooth_l1_loss

from rl_layout import keys
from rl_value import DDPGLoss, TD3Loss

GAMMA, NOISE, CLIP = 0.9, 0.7, 0.5


def td3(nets, **given):
    settings = {"bounds": (-1.0, 1.0), "policy_noise": NOISE, "noise_clip": CLIP, **given}
    loss = TD3Loss(nets.deterministic(), nets.critic(), **settings).double()
    return nets.shaken(loss.make_value_estimator(gamma=GAMMA))


def ddpg(nets, **given):
    loss = DDPGLoss(nets.deterministic(), nets.critic(), **given).double()
    return nets.shaken(loss.make_value_estimator(gamma=GAMMA))


def reference(loss, batch, counted, is_td3):
    """Losses by the equations; noise in the order in which the loss draws it."""
    actor, late = loss.actor_network, loss.target_actor_network or loss.actor_network
    following = batch["next", "observation"]
    action = late.module(following)
    if is_td3:
        noise = (torch.randn_like(action) * NOISE).clamp(-CLIP, CLIP)
        action = (action + noise).clamp(-1, 1)
    ahead = [one.module(following, action) for one in loss.target_qvalue_network.critics]
    alive = ~batch["next", "terminated"]
    worth = torch.stack(ahead).amin(0)
    target = (batch["next", "reward"] + GAMMA * alive.double() * worth).detach()
    critics = loss.qvalue_network.critics
    values = [one.module(batch["observation"], batch["action"]) for one in critics]
    distance = smooth_l1_loss if is_td3 else mse_loss
    qvalue = sum(distance(q[counted], target[counted]) for q in values)
    gain = critics[0].module(batch["observation"], actor.module(batch["observation"]))
    return {
        "loss_actor": -gain[counted].mean(),
        "loss_qvalue" if is_td3 else "loss_value": qvalue,
        "pred_value": torch.stack(values)[:, counted].mean(),
        "target_value": target[counted].mean(),
        "td_error": torch.stack([(q - target).square() for q in values]).amax(0).detach(),
    }


@pytest.mark.parametrize("make", [td3, ddpg])
@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_losses_and_gradients_are_those_of_the_papers(nets, make, lengths, data):
    size = sum(lengths)
    flags = st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor)
    batch, loss = nets.flat(lengths, data.draw(st.integers(0, 2))), make(nets)
    counted = torch.ones(size, dtype=torch.bool)
    if data.draw(st.booleans()):
        batch[keys.NEXT_MISSING] = data.draw(flags) & nets.ends_of(batch)
        counted &= ~(batch[keys.NEXT_MISSING] & ~batch["next", "terminated"][:, 0])
    if not counted.any():
        return
    torch.manual_seed(7)
    found = loss(batch)
    torch.manual_seed(7)
    wanted = reference(loss, batch, counted, make is td3)
    torch.testing.assert_close(batch["td_error"][counted], wanted.pop("td_error")[counted])
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)
    weights = [*loss.actor_network.parameters(), *loss.qvalue_network.parameters()]
    totals = [sum(v for k, v in all_.items() if k.startswith("loss_")) for all_ in (found, wanted)]
    # by the equations the gradient of the actor's loss in the critics is left out
    ours, number = nets.gradients(totals[0], weights), len(list(loss.actor_network.parameters()))
    name = "loss_qvalue" if make is td3 else "loss_value"
    theirs = [
        *nets.gradients(wanted["loss_actor"], weights[:number]),
        *nets.gradients(wanted[name], weights[number:]),
    ]
    torch.testing.assert_close(list(ours), theirs, rtol=1e-9, atol=1e-9)


def test_noise_of_next_actions_is_clipped_and_stays_in_bounds(nets):
    loss = td3(nets, policy_noise=100.0, noise_clip=0.25)
    batch, seen = nets.flat([3, 4]), []
    with torch.no_grad():
        loss.target_actor_network.module[0].weight.zero_()
        loss.target_actor_network.module[0].bias.fill_(2.0)  # tanh 2 = 0.964
    late = loss.target_qvalue_network.critics[0].module
    late.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    loss.targets(batch)
    assert set(seen[0].flatten().round(decimals=3).tolist()) <= {1.0, 0.714}


def test_bounds_come_from_the_spec_or_are_asked_for(nets):
    with pytest.raises(ValueError, match="needs bounds: pass action_spec="):
        TD3Loss(nets.deterministic(), nets.critic())
    with pytest.raises(ValueError, match="say the same in two ways"):
        TD3Loss(nets.deterministic(), nets.critic(), bounds=(-1, 1), action_spec=object())


def test_ddpg_trains_the_critic_that_it_is_given(nets):
    critic = nets.critic()
    loss = DDPGLoss(nets.deterministic(), critic)
    assert next(iter(loss.qvalue_network.parameters())) is next(critic.parameters())
