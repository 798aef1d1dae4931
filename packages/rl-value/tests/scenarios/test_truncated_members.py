"""Members that are truncated while others go on."""

import pytest
import torch
from tensordict.nn import (
    TensorDictModule,
)

from rl_value import (
    GAE,
    DQNLoss,
    TD0Estimator,
    TDLambdaEstimator,
)

LENGTHS = [6, 4]

AGENTS, SIZE, ACTIONS = 3, 5, 4

PLAYED = [[3, 6, 1], [4, 2, 3]]  # steps that each agent plays, trajectory by trajectory

FLAGS = ("done", "terminated", "truncated")


@pytest.mark.parametrize("kind", [GAE, TD0Estimator])
def test_a_member_whose_last_observation_is_overwritten_is_left_out_there(kind, estimator, team):
    batch = team("truncated", repeats=False)
    whole = team("truncated")
    found = estimator(kind, True)(batch)
    # steps before whose end the agent's last next observation is no row of the batch
    lost = torch.zeros(10, AGENTS, dtype=torch.bool)
    for row, agent in ((2, 0), (0, 2), (7, 1), (8, 2)):
        lost[row, agent] = True
    torch.testing.assert_close(found["agents", "next_missing"], lost)
    assert "next_missing" not in found["collector"]
    assert not found["agents", "advantage"][lost].any()
    expected = estimator(TD0Estimator, True)(whole)["agents", "value_target"]
    if kind is TD0Estimator:
        kept = ~lost & ~batch["agents", "done"][..., 0]
        torch.testing.assert_close(found["agents", "value_target"][kept], expected[kept])
    again = estimator(kind, True)(found.clone())
    torch.testing.assert_close(again["agents", "advantage"], found["agents", "advantage"])


def test_losses_leave_out_members_without_their_next_observation(loss_of, team):
    batch = team("truncated", repeats=False)
    loss = loss_of(DQNLoss, True)
    found = loss(batch)["loss"]
    counted = ~batch["agents", "next_missing"] & ~batch["agents", "done"][..., 0]
    error = batch["td_error"][..., 0]
    torch.testing.assert_close(found, error[counted].mean())
    assert not error[~counted].any()


def test_a_row_without_its_next_observation_counts_for_members_that_terminated(loss_of, team):
    batch = team("terminated")
    missing = torch.zeros(10, dtype=torch.bool)
    missing[5] = True  # agent 1 terminates there, the others are out
    missing[6] = True  # no agent does
    batch["collector", "next_missing"] = missing
    loss = loss_of(DQNLoss, True, reduction="none")
    assert loss(batch)["loss"].shape == (10, AGENTS, 1)
    expected = ~batch["agents", "done"][..., 0]
    expected[6] = False
    assert torch.equal(loss.counted(batch), expected)


class Memory(torch.nn.Module):
    """Decaying sums of what each agent saw, and values of them; a state to carry."""

    def forward(self, observation, state, is_init):
        # rows [N, A, SIZE], one sequence after another, as in recurrent mode
        now, values, states = torch.zeros_like(state[0]), [], []
        for seen, stored, first in zip(observation, state, is_init, strict=True):
            now = torch.where(first, stored, now) * 0.5 + seen.sum(-1, keepdim=True)
            values.append(now.sin())
            states.append(now)
        return torch.stack(values), torch.stack(states)


def test_recurrent_critics_go_on_from_what_a_truncated_member_saw_last(alone, names, real, team):
    def made(group):
        seen, state, value = (
            ("agents", name) if group else name for name in ("observation", "state", "value")
        )
        after = ("next", *state) if group else ("next", state)
        network = TensorDictModule(Memory(), [seen, state, "is_init"], [value, after])
        found = GAE(gamma=0.9, lmbda=0.7, value_network=network)
        found.set_keys(**names(group))
        return found

    batch = team("truncated")
    batch["agents", "state"] = torch.zeros(10, AGENTS, 1, dtype=torch.float64)
    single = alone(batch)
    single["state"] = torch.zeros(len(single), 1, dtype=torch.float64)
    found, expected = made(True)(batch), made(False)(single)
    torch.testing.assert_close(found["agents", "advantage"][real(batch)], expected["advantage"])


def test_a_member_that_begins_anew_in_the_next_row_lacks_its_next_observation(estimator, team):
    batch = team("truncated")
    batch["agents", "is_init"][3, 0] = True  # reset by itself, to what it saw last
    found = estimator(TD0Estimator, True)(batch)
    assert found["agents", "next_missing"].nonzero().tolist() == [[2, 0]]


def test_next_observations_of_another_dtype_are_compared_as_the_network_reads_them(names, team):
    batch = team("truncated")
    batch["agents", "observation"] = batch["agents", "observation"].float()
    after = batch["next", "agents", "observation"].float()
    batch["next", "agents", "observation"] = after.double()
    critic = TensorDictModule(
        lambda x: x.double().sum(-1, keepdim=True),
        [("agents", "observation")],
        [("agents", "value")],
    )
    found = TD0Estimator(gamma=0.9, value_network=critic)
    found.set_keys(**names(True))
    assert not found(batch)["agents", "next_missing"].any()


def test_a_member_that_is_truncated_needs_next_observations_to_be_stored(estimator, team):
    batch = team("truncated").exclude(("next", "agents", "observation"))
    found = estimator(TD0Estimator, True)(batch)["agents", "next_missing"]
    assert found.nonzero().tolist() == [[0, 2], [2, 0], [7, 1], [8, 2]]


def test_members_that_are_truncated_inside_rows_of_n_steps_are_refused(estimator, team):
    batch = team("truncated")
    batch["next", "steps_to_next_obs"] = torch.ones(10, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="in 4 rows of n steps: a row has one distance"):
        estimator(TDLambdaEstimator, True)(batch)
