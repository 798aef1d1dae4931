"""Estimates that losses of policies compute, or find in the batch."""

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys, set_recurrent_mode
from rl_layout.testing import EndKind, trajectories
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    PPOLoss,
    ReinforceLoss,
    ValueEstimators,
    VTrace,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def test_advantages_that_are_missing_are_estimated(linear_critic, discrete_actor, flat_batch):
    batch, net = flat_batch(), linear_critic()
    plain = batch.exclude("advantage", "value_target")
    loss = PPOLoss(discrete_actor(), net)
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.8)
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=net)(plain.clone())
    found = loss(plain)
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(plain[key], expected[key])
    torch.testing.assert_close(found["loss_objective"], loss(expected)["loss_objective"])
    loss.make_value_estimator("vtrace", gamma=0.9)
    assert isinstance(loss.value_estimator, VTrace)
    loss(batch.exclude("advantage", "value_target"))


@pytest.mark.parametrize("kind", list(ValueEstimators))
def test_every_estimator_is_made_by_its_name(kind, linear_critic, discrete_actor):
    loss = A2CLoss(discrete_actor(), linear_critic())
    by_name = loss.make_value_estimator(kind.value, gamma=0.5).value_estimator
    by_kind = loss.make_value_estimator(kind, gamma=0.5).value_estimator
    assert type(by_name) is type(by_kind)
    assert by_kind.gamma == 0.5
    assert not any("estimator" in name for name, _ in loss.named_modules())


def test_other_names_reach_the_estimator(linear_critic, discrete_actor, flat_batch):
    batch, net = flat_batch(), linear_critic()
    loss = PPOLoss(discrete_actor(), net)
    expected = loss(batch.exclude("advantage", "value_target"))
    renamed = batch.exclude("advantage", "value_target")
    renamed.rename_key_("action", "act")
    renamed.rename_key_("sample_log_prob", "old")
    renamed.rename_key_(("next", "reward"), ("next", "gain"))
    loss.make_value_estimator()
    loss.set_keys(action="act", sample_log_prob="old", reward="gain", advantage="a")
    found = loss(renamed)
    torch.testing.assert_close(found["loss_objective"], expected["loss_objective"])
    assert renamed.get("a", None) is not None
    with pytest.raises(KeyError, match="there is no entry 'actions'"):
        loss.set_keys(actions="act")


def test_the_value_may_move_no_further_than_it_is_told(linear_critic, discrete_actor, flat_batch):
    batch, net = flat_batch(), linear_critic()
    batch["state_value"] = torch.randn(9, 1, dtype=torch.float64)
    value = net.module.weight @ batch["x"].T + net.module.bias
    old, target = batch["state_value"][:, 0], batch["value_target"][:, 0]
    near = old + (value[0] - old).clamp(-0.2, 0.2)
    worse = torch.maximum((value[0] - target) ** 2, (near - target) ** 2).mean()
    for settings in ({"clip_value": 0.2}, {"clip_value": True}):
        loss = ClipPPOLoss(discrete_actor(), net, loss_critic_type="l2", **settings)
        torch.testing.assert_close(loss(batch)["loss_critic"], worse)
    with pytest.raises(KeyError, match="'state_value' is missing"):
        loss(batch.exclude("state_value"))


def test_vtrace_reads_nothing_of_padding(linear_critic, discrete_actor, flat_batch, padded):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
    batch[keys.MASK] = torch.arange(9) % 4 != 1
    estimator = VTrace(gamma=0.9, actor_network=actor, value_network=net)
    expected = estimator(batch.clone())["advantage"]
    torch.testing.assert_close(estimator(padded(batch))["advantage"], expected)


def test_a_delayed_critic_values_next_states(linear_critic, discrete_actor, flat_batch):
    net = linear_critic()
    loss = ReinforceLoss(discrete_actor(), net, delay_value=True)
    with torch.no_grad():
        net.module.weight.mul_(3)
    batch = flat_batch().exclude("advantage", "value_target")
    expected = GAE(gamma=0.99, lmbda=0.95, value_network=net)(
        batch.clone(), target_params=TensorDict.from_module(loss.target_critic_network)
    )
    loss(batch)
    torch.testing.assert_close(batch["advantage"], expected["advantage"])
    with pytest.raises(RuntimeError, match="needs functional=True"):
        ReinforceLoss(discrete_actor(), net, delay_value=True, functional=False)


@pytest.mark.filterwarnings("ignore:'advantage' is stored and 'value_target' is:UserWarning")
@pytest.mark.parametrize("loss_class", [PPOLoss, A2CLoss, ReinforceLoss])
@pytest.mark.parametrize("given", ["advantage", "value_target"])
def test_stored_estimates_are_not_recomputed(
    loss_class, given, linear_critic, discrete_actor, flat_batch
):
    batch = flat_batch()
    stored = batch[given].clone()
    batch.exclude("advantage" if given == "value_target" else "value_target", inplace=True)
    whole = GAE(gamma=0.99, lmbda=0.95, value_network=(net := linear_critic()))(
        batch.exclude("advantage", "value_target")
    )
    loss_class(discrete_actor(), net)(batch)
    torch.testing.assert_close(batch[given], stored)
    other = "advantage" if given == "value_target" else "value_target"
    torch.testing.assert_close(batch[other], whole[other])


def test_values_that_move_less_than_the_bound_are_not_clipped(
    linear_critic, discrete_actor, policy_batch
):
    batch, net = policy_batch(trajectories([400])).float(), linear_critic().float()
    with set_recurrent_mode(True):
        batch["state_value"] = net(batch.copy())["state_value"].detach() + 1.5
    for bound, share in ((2.0, 0.0), (1.0, 1.0)):
        loss = ClipPPOLoss(discrete_actor().float(), net, clip_value=bound)
        assert loss(batch)["value_clip_fraction"] == share
