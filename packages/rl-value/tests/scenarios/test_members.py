"""Batches of several agents that leave one by one, against each agent alone."""

import pytest
import torch

from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DQNLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
)
from rl_value.masked_means import spread

LENGTHS = [6, 4]

AGENTS, SIZE, ACTIONS = 3, 5, 4

PLAYED = [[3, 6, 1], [4, 2, 3]]  # steps that each agent plays, trajectory by trajectory

FLAGS = ("done", "terminated", "truncated")

ESTIMATORS = [GAE, TDLambdaEstimator, TD1Estimator, TD0Estimator, VTrace]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_estimates_of_a_member_are_those_of_the_member_alone(
    kind, end, alone, estimator, real, team
):
    batch = team(end)
    found = estimator(kind, True)(batch.clone())["agents"]
    expected = estimator(kind, False)(alone(batch))
    place = real(batch)
    for name in ("advantage", "value_target"):
        torch.testing.assert_close(found[name][place], expected[name])
    out = batch["agents", "done"]
    assert not found["advantage"][out].any()
    torch.testing.assert_close(found["value_target"][out], found["value"][out])


def test_rewards_are_standardised_over_the_steps_that_members_play(alone, estimator, real, team):
    batch = team("terminated")
    found = estimator(GAE, True, average_rewards=True)(batch.clone())["agents", "advantage"]
    expected = estimator(GAE, False, average_rewards=True)(alone(batch))["advantage"]
    torch.testing.assert_close(found[real(batch)], expected)


LOSSES = [
    (A2CLoss, {}),
    (PPOLoss, {}),
    (ClipPPOLoss, {"normalize_advantage": True, "clip_value": 0.1}),
    (KLPENPPOLoss, {}),
    (ReinforceLoss, {}),
    (DQNLoss, {"loss_function": "smooth_l1"}),
]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("kind", "settings"), LOSSES)
def test_losses_are_means_over_the_steps_that_members_play(
    kind, settings, reduction, end, alone, loss_of, team
):
    batch = team(end)
    single = alone(batch)
    many = loss_of(kind, True, reduction=reduction, **settings)
    one = loss_of(kind, False, reduction=reduction, **settings)
    found, expected = many(batch), one(single)
    assert set(found.keys()) == set(expected.keys())
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, msg=lambda m, key=key: f"{key}: {m}")
    sums = [
        sum(value for name, value in each.items() if name.startswith("loss"))
        for each in (found, expected)
    ]
    for each in sums:
        each.backward()
    for left, right in zip(many.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad)


@pytest.mark.parametrize("shape", [(10, AGENTS), (10, AGENTS, 1)])
@pytest.mark.parametrize("auto", [True, False])
def test_members_are_out_where_a_mask_of_the_group_says_so(shape, auto, loss_of, team):
    batch = team("terminated")
    expected = loss_of(A2CLoss, True)(batch.clone())["loss_critic"]
    batch["agents", "mask"] = ~batch["agents", "done"].view(shape)
    batch = batch.exclude(("agents", "done"))
    settings = {} if auto else {"loss_mask_key": ("agents", "mask")}
    found = loss_of(A2CLoss, True, **settings)(batch)["loss_critic"]
    torch.testing.assert_close(found, expected)


def test_a_mask_of_another_shape_says_nothing_of_members(loss_of, team):
    batch = team("terminated")
    expected = loss_of(A2CLoss, True)(batch.clone())
    batch["agents", "mask"] = torch.zeros(10, AGENTS, ACTIONS, dtype=torch.bool)  # of actions
    found = loss_of(A2CLoss, True)(batch)
    torch.testing.assert_close(found["loss_critic"], expected["loss_critic"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(10, AGENTS), (10, AGENTS, 1)])
def test_a_mask_of_members_in_another_dtype_is_refused(shape, dtype, estimator, loss_of, team):
    batch = team("terminated")
    batch["agents", "mask"] = (~batch["agents", "done"].view(shape)).to(dtype)
    for made in (loss_of(A2CLoss, True), estimator(GAE, True)):
        with pytest.raises(TypeError, match=r"'agents', 'mask'.*expected torch.bool"):
            made(batch.clone())


@pytest.mark.parametrize("kind", [A2CLoss, ClipPPOLoss, ReinforceLoss])
def test_a_loss_that_was_not_told_the_flags_of_the_members_is_refused(
    kind, estimator, names, networks, team
):
    # the means would be over steps of members that are out
    batch = estimator(GAE, True)(team("terminated"))
    loss = kind(*networks(True))
    kept = {name: key for name, key in names(True).items() if name not in ("terminated", "done")}
    loss.set_keys(action=("agents", "action"), **kept)
    with pytest.raises(ValueError, match=r"set_keys\(terminated=\('agents', 'terminated'\)"):
        loss(batch)


@pytest.mark.parametrize("shape", [(10,), (10, 1), (10, AGENTS), (10, AGENTS, 1)])
def test_the_priority_weight_of_a_row_counts_for_each_of_its_members(shape, loss_of, team):
    batch = team("terminated")
    errors = batch.clone()
    loss_of(DQNLoss, True)(errors)
    torch.manual_seed(4)
    batch["priority_weight"] = torch.rand(shape, dtype=torch.float64)
    found = loss_of(DQNLoss, True)(batch.clone())["loss"]
    plays = ~batch["agents", "done"]
    weight = batch["priority_weight"].reshape(10, -1, 1).expand_as(plays)[plays]
    expected = (weight * errors["td_error"][plays]).sum() / weight.sum()
    torch.testing.assert_close(found, expected)


def test_compiled_losses_leave_out_the_same_members(loss_of, team):
    batch = team("truncated")
    for kind in (DQNLoss, A2CLoss):
        loss = loss_of(kind, True)
        expected = loss(batch.clone())
        found = torch.compile(loss, backend="eager")(batch.clone())
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value)


def test_a_loss_says_how_many_steps_of_members_count(loss_of, team):
    played = sum(map(sum, PLAYED))
    said = loss_of(A2CLoss, True).explain(team("terminated"))
    assert f"steps: {played} of {10 * AGENTS} count" in said


def test_what_is_one_for_all_members_counts_where_any_of_them_plays():
    counted = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])
    assert spread(counted, torch.zeros(3, 1)).tolist() == [[True], [False], [True]]
    assert spread(counted, torch.zeros(3)).tolist() == [True, False, True]


def test_an_estimator_says_how_many_steps_of_members_it_leaves_out(estimator, team):
    out = 10 * AGENTS - sum(map(sum, PLAYED))
    said = estimator(GAE, True).explain(team("terminated"))
    assert f"left out: {out} of members that are out" in said


def test_entries_of_a_group_are_offered_where_keys_were_not_set(networks, team):
    critic = networks(True)[1]
    with pytest.raises(KeyError, match=r"Did you mean \('next', 'agents', 'reward'\)\?"):
        GAE(gamma=0.9, lmbda=0.7, value_network=critic)(team("terminated"))
