"""Batches of several agents that leave one by one, against each agent alone."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

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


def team(kind, repeats=True):
    """A batch `[10]` of three agents, each of which is out after as many steps as it plays."""
    torch.manual_seed(3)
    rows = []
    for number, (length, played) in enumerate(zip(LENGTHS, PLAYED, strict=True)):
        seen = torch.randn(length + 1, AGENTS, SIZE, dtype=torch.float64)
        reward = torch.randn(length, AGENTS, 1, dtype=torch.float64)
        over = torch.zeros(length, 1, dtype=torch.bool)
        over[-1] = True
        done = torch.stack([torch.arange(length) >= n - 1 for n in played], -1)[..., None]
        after = seen[1:].clone()
        for agent, n in enumerate(played):
            reward[n:, agent] = 0
            after[n:, agent] = after[n - 1, agent]
            seen[n + 1 :, agent] = seen[n, agent]
            if not repeats:  # the next step overwrites what the agent saw last
                after[n:, agent] = seen[n:, agent] = 0
                seen[n:, agent] = 0
        ended = {name: torch.zeros_like(done) for name in FLAGS}
        ended["done"] = ended[kind] = done
        before = {k: torch.cat([torch.zeros_like(v[:1]), v[:-1]]) for k, v in ended.items()}
        start = torch.zeros(length, 1, dtype=torch.bool)
        start[0] = True
        log_prob = torch.randn(length, AGENTS, dtype=torch.float64) / 9 - 1.4
        agents = {
            "observation": seen[:-1],
            "action": torch.randint(ACTIONS, (length, AGENTS)),
            "log_prob": log_prob,
            "logits": torch.randn(length, AGENTS, ACTIONS, dtype=torch.float64),
            "is_init": start[:, None].expand(length, AGENTS, 1),
            **before,
        }
        next_agents = {"observation": after, "reward": reward, **ended}
        marks = {
            "traj_ids": torch.full((length,), number),
            "traj_step": torch.arange(length),
        }
        row = {
            "agents": TensorDict(agents, [length, AGENTS]),
            "is_init": start,
            "collector": marks,
            "next": {
                "agents": TensorDict(next_agents, [length, AGENTS]),
                "done": over,
                "terminated": over,
                "truncated": torch.zeros_like(over),
            },
        }
        rows.append(TensorDict(row, [length]))
    return torch.cat(rows)


def alone(batch):
    """The steps that agents play, as one trajectory of a single agent after another."""
    pieces, ids, start = [], 0, 0
    for length, played in zip(LENGTHS, PLAYED, strict=True):
        for agent, n in enumerate(played):
            part = batch[start : start + n]
            own, after = part["agents"][:, agent], part["next", "agents"][:, agent]
            first = torch.zeros(n, 1, dtype=torch.bool)
            first[0] = True
            ends = {name: after[name] for name in FLAGS}
            ends["done"] = ends["terminated"] | ends["truncated"]
            marks = {"traj_ids": torch.full((n,), ids), "traj_step": torch.arange(n)}
            row = {
                **{k: own[k] for k in ("observation", "action", "log_prob", "logits")},
                "is_init": first,
                "collector": marks,
                "next": {"observation": after["observation"], "reward": after["reward"], **ends},
            }
            pieces.append(TensorDict(row, [n]))
            ids += 1
        start += length
    return torch.cat(pieces)


def real(batch):
    """Steps that an agent plays, in the order of `alone`: their rows and agents."""
    rows, agents, start = [], [], 0
    for length, played in zip(LENGTHS, PLAYED, strict=True):
        for agent, n in enumerate(played):
            rows += range(start, start + n)
            agents += [agent] * n
        start += length
    return torch.tensor(rows), torch.tensor(agents)


def linear(size, seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(SIZE, size, dtype=torch.float64)


def networks(group):
    """Actor and critic that see each agent by itself; of one agent where there is no group."""

    def key(name):
        return ("agents", name) if group else name

    logits = TensorDictModule(linear(ACTIONS, 1), [key("observation")], [key("logits")])
    chance = ProbabilisticTensorDictModule(
        {"logits": key("logits")},
        [key("action")],
        distribution_class=Categorical,
        log_prob_key=key("log_prob"),
        return_log_prob=True,
    )
    actor = ProbabilisticTensorDictSequential(logits, chance)
    critic = TensorDictModule(linear(1, 2), [key("observation")], [key("value")])
    return actor, critic


def names(group):
    keys = ("reward", "done", "terminated", "value", "advantage", "value_target")
    found = {name: ("agents", name) if group else name for name in keys}
    found["sample_log_prob"] = ("agents", "log_prob") if group else "log_prob"
    return found


def estimator(kind, group, **settings):
    actor, critic = networks(group)
    if kind in (GAE, TDLambdaEstimator):
        settings["lmbda"] = 0.7
    if kind is VTrace:
        settings["actor_network"] = actor
    made = kind(gamma=0.9, value_network=critic, **settings)
    made.set_keys(**names(group))
    if kind is VTrace:
        made.action_key = ("agents", "action") if group else "action"
    return made


ESTIMATORS = [GAE, TDLambdaEstimator, TD1Estimator, TD0Estimator, VTrace]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_estimates_of_a_member_are_those_of_the_member_alone(kind, end):
    batch = team(end)
    found = estimator(kind, True)(batch.clone())["agents"]
    expected = estimator(kind, False)(alone(batch))
    place = real(batch)
    for name in ("advantage", "value_target"):
        torch.testing.assert_close(found[name][place], expected[name])
    out = batch["agents", "done"]
    assert not found["advantage"][out].any()
    torch.testing.assert_close(found["value_target"][out], found["value"][out])


def test_rewards_are_standardised_over_the_steps_that_members_play():
    batch = team("terminated")
    found = estimator(GAE, True, average_rewards=True)(batch.clone())["agents", "advantage"]
    expected = estimator(GAE, False, average_rewards=True)(alone(batch))["advantage"]
    torch.testing.assert_close(found[real(batch)], expected)


def loss_of(kind, group, **settings):
    if kind is DQNLoss:
        key = ("agents", "values") if group else "values"
        seen = ("agents", "observation") if group else "observation"
        network = TensorDictModule(linear(ACTIONS, 5), [seen], [key])
        made = DQNLoss(network, action_space="categorical", **settings)
        flags = {name: names(group)[name] for name in ("reward", "done", "terminated")}
        made.set_keys(action_value=key, action=("agents", "action") if group else "action", **flags)
        return made
    made = kind(*networks(group), **settings)
    made.set_keys(action=("agents", "action") if group else "action", **names(group))
    made.make_value_estimator(gamma=0.9)
    return made


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
def test_losses_are_means_over_the_steps_that_members_play(kind, settings, reduction, end):
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
def test_members_are_out_where_a_mask_of_the_group_says_so(shape, auto):
    batch = team("terminated")
    expected = loss_of(A2CLoss, True)(batch.clone())["loss_critic"]
    batch["agents", "mask"] = ~batch["agents", "done"].view(shape)
    batch = batch.exclude(("agents", "done"))
    settings = {} if auto else {"loss_mask_key": ("agents", "mask")}
    found = loss_of(A2CLoss, True, **settings)(batch)["loss_critic"]
    torch.testing.assert_close(found, expected)


def test_a_mask_of_another_shape_says_nothing_of_members():
    batch = team("terminated")
    expected = loss_of(A2CLoss, True)(batch.clone())
    batch["agents", "mask"] = torch.zeros(10, AGENTS, ACTIONS, dtype=torch.bool)  # of actions
    found = loss_of(A2CLoss, True)(batch)
    torch.testing.assert_close(found["loss_critic"], expected["loss_critic"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(10, AGENTS), (10, AGENTS, 1)])
def test_a_mask_of_members_in_another_dtype_is_refused(shape, dtype):
    batch = team("terminated")
    batch["agents", "mask"] = (~batch["agents", "done"].view(shape)).to(dtype)
    for made in (loss_of(A2CLoss, True), estimator(GAE, True)):
        with pytest.raises(TypeError, match=r"'agents', 'mask'.*expected torch.bool"):
            made(batch.clone())


@pytest.mark.parametrize("kind", [A2CLoss, ClipPPOLoss, ReinforceLoss])
def test_a_loss_that_was_not_told_the_flags_of_the_members_is_refused(kind):
    # the means would be over steps of members that are out
    batch = estimator(GAE, True)(team("terminated"))
    loss = kind(*networks(True))
    kept = {name: key for name, key in names(True).items() if name not in ("terminated", "done")}
    loss.set_keys(action=("agents", "action"), **kept)
    with pytest.raises(ValueError, match=r"set_keys\(terminated=\('agents', 'terminated'\)"):
        loss(batch)


@pytest.mark.parametrize("shape", [(10,), (10, 1), (10, AGENTS), (10, AGENTS, 1)])
def test_the_priority_weight_of_a_row_counts_for_each_of_its_members(shape):
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


@pytest.mark.parametrize("kind", [GAE, TD0Estimator])
def test_a_member_whose_last_observation_is_overwritten_is_left_out_there(kind):
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


def test_losses_leave_out_members_without_their_next_observation():
    batch = team("truncated", repeats=False)
    loss = loss_of(DQNLoss, True)
    found = loss(batch)["loss"]
    counted = ~batch["agents", "next_missing"] & ~batch["agents", "done"][..., 0]
    error = batch["td_error"][..., 0]
    torch.testing.assert_close(found, error[counted].mean())
    assert not error[~counted].any()


def test_a_row_without_its_next_observation_counts_for_members_that_terminated():
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


def test_compiled_losses_leave_out_the_same_members():
    batch = team("truncated")
    for kind in (DQNLoss, A2CLoss):
        loss = loss_of(kind, True)
        expected = loss(batch.clone())
        found = torch.compile(loss, backend="eager")(batch.clone())
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value)


def test_a_loss_says_how_many_steps_of_members_count():
    played = sum(map(sum, PLAYED))
    said = loss_of(A2CLoss, True).explain(team("terminated"))
    assert f"steps: {played} of {10 * AGENTS} count" in said


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


def test_recurrent_critics_go_on_from_what_a_truncated_member_saw_last():
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


def test_a_member_that_begins_anew_in_the_next_row_lacks_its_next_observation():
    batch = team("truncated")
    batch["agents", "is_init"][3, 0] = True  # reset by itself, to what it saw last
    found = estimator(TD0Estimator, True)(batch)
    assert found["agents", "next_missing"].nonzero().tolist() == [[2, 0]]


def test_next_observations_of_another_dtype_are_compared_as_the_network_reads_them():
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


def test_a_member_that_is_truncated_needs_next_observations_to_be_stored():
    batch = team("truncated").exclude(("next", "agents", "observation"))
    found = estimator(TD0Estimator, True)(batch)["agents", "next_missing"]
    assert found.nonzero().tolist() == [[0, 2], [2, 0], [7, 1], [8, 2]]


def test_members_that_are_truncated_inside_rows_of_n_steps_are_refused():
    batch = team("truncated")
    batch["next", "steps_to_next_obs"] = torch.ones(10, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="in 4 rows of n steps: a row has one distance"):
        estimator(TDLambdaEstimator, True)(batch)


def test_what_is_one_for_all_members_counts_where_any_of_them_plays():
    counted = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])
    assert spread(counted, torch.zeros(3, 1)).tolist() == [[True], [False], [True]]
    assert spread(counted, torch.zeros(3)).tolist() == [True, False, True]


def test_an_estimator_says_how_many_steps_of_members_it_leaves_out():
    out = 10 * AGENTS - sum(map(sum, PLAYED))
    said = estimator(GAE, True).explain(team("terminated"))
    assert f"left out: {out} of members that are out" in said


def test_entries_of_a_group_are_offered_where_keys_were_not_set():
    critic = networks(True)[1]
    with pytest.raises(KeyError, match=r"Did you mean \('next', 'agents', 'reward'\)\?"):
        GAE(gamma=0.9, lmbda=0.7, value_network=critic)(team("terminated"))
