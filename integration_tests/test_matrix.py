"""Collector to loss in every pair of choices: markers hold, and numbers are those by hand."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from matrix import by_hand
from matrix.choices import (
    COLLECTORS,
    ESTIMATORS,
    LOSSES,
    NETWORKS,
    SAMPLERS,
    SHAPES,
    STORAGES,
    Networks,
    collect,
    collect_columns,
    draw,
    make_buffer,
    make_env,
    make_estimator,
    make_loss,
    pairwise,
    shaped,
)
from rl_layout import check_layout
from rl_policies import QValueActor
from rl_value import DQNLoss, TD0Estimator

STEPS_AGREE = {"rtol": 2e-4, "atol": 2e-5}  # float32, sums in another order


@functools.cache
def collected(collector, stored, family):
    """Batches of one kind; the backend of a network does not matter while stepping."""
    name = family if family == "mlp" else f"{family} pad"
    return collect(collector, stored, Networks(name).actor)


@functools.cache
def columns(family):
    return collect_columns(Networks(family if family == "mlp" else f"{family} pad").actor)


def batches(collector, storage, family):
    stored = storage if storage in ("compact_obs", "delta") else "as it is"
    found = collected(collector, stored, family)
    assert all(not check_layout(batch).errors for batch in found)
    return [batch.exclude("features", "logits") for batch in found]


def assert_genuine(sample):
    """Every observation is (episode, step): that of the next one follows from it."""
    kept = ~sample.get(("collector", "next_missing"), torch.zeros(len(sample), dtype=torch.bool))
    following = sample["observation"] + torch.tensor([0.0, 1.0])
    assert kept.any()
    assert torch.equal(sample["next", "observation"][kept], following[kept])


def off_policy(sample):
    """Log-probabilities of another policy than the one that is trained."""
    sample["sample_log_prob"] = sample["sample_log_prob"] + torch.linspace(-0.5, 0.5, len(sample))
    return sample


def gradients(networks):
    return [
        parameter.grad
        for module in (networks.body, networks.actor_head, networks.critic_head)
        for parameter in module.parameters()
    ]


def test_every_pair_of_choices_is_covered():
    choices = [COLLECTORS, STORAGES, SAMPLERS, NETWORKS, ESTIMATORS, LOSSES]
    rows = pairwise(*choices)
    for i, j in itertools.combinations(range(len(choices)), 2):
        seen = {(row[i], row[j]) for row in rows}
        assert seen == set(itertools.product(choices[i], choices[j]))
    assert len(rows) < 50


@pytest.mark.parametrize(
    ("collector", "storage", "sampler", "network", "estimator", "loss"),
    pairwise(COLLECTORS, STORAGES, SAMPLERS, NETWORKS, ESTIMATORS, LOSSES),
)
def test_one_step_of_training(collector, storage, sampler, network, estimator, loss):
    networks = Networks(network)
    sample = draw(storage, sampler, batches(collector, storage, networks.family))
    assert not check_layout(sample).errors
    assert_genuine(sample)
    off_policy(sample)
    assert_trains_as_by_hand(networks, sample, estimator, loss)


@pytest.mark.parametrize(
    ("shape", "network", "estimator", "loss"), pairwise(SHAPES, NETWORKS, ESTIMATORS, LOSSES)
)
def test_one_step_of_training_in_every_shape(shape, network, estimator, loss):
    networks = Networks(network)
    batch = columns(networks.family).exclude("features", "logits").clone()
    batch["sample_log_prob"] += torch.linspace(-0.5, 0.5, batch.numel()).view(batch.shape)
    assert_trains_as_by_hand(networks, shaped(shape, batch), estimator, loss)


def real_rows(batch):
    """Rows `[N]`, padding left out."""
    flat = batch.reshape(-1)
    mask = flat.get(("collector", "mask"), None)
    return flat if mask is None else flat[mask]


def assert_trains_as_by_hand(networks, sample, estimator, loss):
    agent, rows = networks.by_hand(), real_rows(sample).clone()
    found = by_hand.Found(agent, rows)
    make_estimator(estimator, networks)(sample)
    assert not check_layout(sample).errors
    made = real_rows(sample)
    fits = made.get("shifted_valid", torch.ones(len(rows), dtype=torch.bool)).flatten()
    assert fits.float().mean() > 0.5
    counted = fits & ~by_hand.missing(rows)
    advantage, target = by_hand.returns(found, estimator.partition(" ")[0], ~counted)
    assert_close(made["advantage"].flatten()[fits], advantage[fits], **STEPS_AGREE)
    assert_close(made["value_target"].flatten()[fits], target[fits], **STEPS_AGREE)

    module = make_loss(loss, networks)
    losses = module(sample)
    total = sum(value for key, value in losses.items() if key.startswith("loss_"))
    wanted = by_hand.total_loss(found, loss, advantage, target, counted)
    assert_close(total, wanted, **STEPS_AGREE)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    total.backward()
    wanted.backward()
    for mine, twin in zip(gradients(networks), agent.parameters(), strict=True):
        assert_close(mine, twin.grad, **STEPS_AGREE)
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("storage", STORAGES)
def test_one_step_of_q_learning_from_random_rows(collector, storage):
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    actor = QValueActor(net, in_keys=["observation"], spec=make_env(0, delta=False).action_spec)
    buffer = make_buffer(storage, None)
    for batch in batches(collector, storage, "mlp"):
        buffer.extend(batch)
    sample = buffer.sample()
    assert_genuine(sample)
    loss = DQNLoss(actor, delay_value=False)
    loss.make_value_estimator("td0", gamma=0.9)
    found = loss(sample)["loss"]
    counted = ~by_hand.missing(sample)
    values = (net(sample["observation"]) * sample["action"]).sum(-1)
    best = net(sample["next", "observation"].nan_to_num()).max(-1).values.detach()
    on = ~sample["next", "terminated"].flatten()
    target = sample["next", "reward"].flatten() + 0.9 * on * best
    wanted = (values - target)[counted].square().mean()
    assert_close(found, wanted)
    mine = torch.autograd.grad(found, list(net.parameters()))
    twin = torch.autograd.grad(wanted, list(net.parameters()))
    assert_close(mine, twin)


@pytest.mark.parametrize("storage", STORAGES)
def test_one_step_errors_of_random_rows(storage):
    networks = Networks("mlp")
    buffer = make_buffer(storage, None)
    for batch in batches("single", storage, "mlp"):
        buffer.extend(batch)
    sample = off_policy(buffer.sample())
    value = TensorDictSequential(
        networks.body, TensorDictModule(networks.critic_head, ["features"], ["state_value"])
    )
    TD0Estimator(gamma=by_hand.GAMMA, value_network=value)(sample)
    found = by_hand.Found(networks.by_hand(), sample)
    advantage, target = by_hand.returns(found, "td0", by_hand.missing(sample))
    assert_close(sample["advantage"].flatten(), advantage, **STEPS_AGREE)
    assert_close(sample["value_target"].flatten(), target, **STEPS_AGREE)
