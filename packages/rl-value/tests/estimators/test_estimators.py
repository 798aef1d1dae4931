import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
)

from rl_layout import keys
from rl_layout.testing import EndKind, batches, environments, trajectories
from rl_tensordict import as_tuple
from rl_value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace

GAMMA, LMBDA = 0.9, 0.7

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)

STEPS = keys.STEPS_TO_NEXT_OBS

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


@given(batches())
def test_every_layout_equals_sums_over_each_trajectory(
    curve_network, by_hand, critic, prepared, trajectories_of, values_of, batch
):
    batch = prepared(batch)
    calls = {"gamma": GAMMA, "value_network": critic()}
    for estimator, lmbda in (
        (TD0Estimator(**calls), 0.0),
        (TD1Estimator(**calls), 1.0),
        (TDLambdaEstimator(lmbda=LMBDA, **calls), LMBDA),
        (GAE(lmbda=LMBDA, **calls), LMBDA),
        (GAE(lmbda=LMBDA, num_chunks=3, **calls), LMBDA),
        (GAE(lmbda=LMBDA, value_chunk_size=1, single_call=False, **calls), LMBDA),
    ):
        found, expected = estimator(batch.clone()), by_hand(batch, lmbda)
        torch.testing.assert_close(found["value_target"], expected)
        mask = batch.get(keys.MASK, torch.ones(batch.batch_size, dtype=torch.bool))[..., None]
        value = torch.where(mask, curve_network()(batch["observation"]), 0)
        torch.testing.assert_close(found["state_value"], value)
        torch.testing.assert_close(found["advantage"], expected - value)
        flat, runs = trajectories_of(batch)
        ahead = torch.where(mask, values_of(flat, runs)[1].view_as(value), 0)
        torch.testing.assert_close(found["next", "state_value"], ahead)


@given(batches())
def test_vtrace_equals_sums_over_each_trajectory(actor, by_hand, critic, prepared, batch):
    batch = prepared(batch)
    estimator = VTrace(gamma=GAMMA, actor_network=actor(), value_network=critic())
    now = actor().get_dist(batch.clone()).log_prob(batch["action"])
    rho = (now - batch["sample_log_prob"]).exp().clamp(max=1)
    found = estimator(batch.clone())
    torch.testing.assert_close(found["value_target"], by_hand(batch, 1.0, rho))
    # with both bounds at 1 and λ = 1 the correction is the advantage of the policy gradient
    torch.testing.assert_close(found["advantage"], found["value_target"] - found["state_value"])


@given(batches(), st.data())
def test_steps_without_a_next_observation_carry_nothing(
    critic, prepared, trajectories_of, values_of, batch, data
):
    batch = prepared(batch)
    size = batch.numel()
    missing = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    missing = missing.view(batch.batch_size)
    lost = missing.unsqueeze(-1) & ~batch["next", "terminated"]
    found = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())(
        batch.clone().set(keys.NEXT_MISSING, missing)
    )
    flat, runs = trajectories_of(batch)
    gone = lost.reshape(-1)
    value, ahead = values_of(flat, runs)
    ahead = torch.where(flat["next", "terminated"][:, 0], 0, ahead)
    delta = flat["next", "reward"][:, 0] + GAMMA * ahead - value
    expected = torch.zeros(size, dtype=torch.float64)
    for rows in runs:
        carried = 0.0
        for i in reversed(rows):
            carried = 0.0 if gone[i] else delta[i].item() + GAMMA * LMBDA * carried
            expected[i] = carried
    torch.testing.assert_close(found["advantage"].reshape(-1), expected)
    real = batch.get(keys.MASK, torch.ones(batch.batch_size, dtype=torch.bool)).reshape(-1)
    torch.testing.assert_close(
        found["value_target"].reshape(-1), torch.where(real, value + expected, 0)
    )


def test_a_literal_case_with_every_kind_of_end():
    batch = trajectories([2, 1, 2], KINDS)
    value = TensorDictModule(lambda x: x[:, 1:] * 10, ["observation"], ["state_value"])
    GAE(gamma=0.5, lmbda=0.5, value_network=value)(batch)
    # rewards 1, 2 | 1 | 1, 2; values 0, 10 | 0 | 0, 10; next 10, - | 10 | 10, 20
    # deltas 6, -8 | 6 | 6, 2, and 6 - 8 / 4, 6 + 2 / 4
    assert batch["advantage"].flatten().tolist() == [4, -8, 6, 6.5, 2]
    assert batch["value_target"].flatten().tolist() == [4, 2, 6, 6.5, 12]
    assert batch["next", "state_value"].flatten().tolist() == [10, 20, 10, 10, 20]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e300])
def test_a_bad_value_in_one_trajectory_changes_no_other(poison, critic, prepared):
    batch = prepared(trajectories([3, 4, 2], KINDS))
    estimator = GAE(gamma=1.0, lmbda=1.0, value_network=critic())
    clean = estimator(batch.clone())["advantage"]
    batch["next", "reward"][4] = poison
    found = estimator(batch.clone())["advantage"]
    assert torch.equal(found[:3], clean[:3])
    assert torch.equal(found[7:], clean[7:])
    assert not found[3].isfinite() or poison == 1e300


def test_a_nan_of_the_environment_is_not_replaced(critic, prepared):
    batch = prepared(trajectories([3, 4], EndKind.TRUNCATED))
    batch["next", "observation"][6] = float("nan")
    for missing_next in ("skip", "root"):
        estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic(), missing_next=missing_next)
        found = estimator(batch.clone())["advantage"]
        assert found[:3].isfinite().all()
        assert found[3:].isnan().all()
        assert estimator.num_substituted == 0


def test_a_missing_next_observation_may_be_replaced_by_the_root_and_is_counted(
    by_hand, critic, prepared
):
    batch = prepared(trajectories([3, 4, 2], KINDS))
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 1]).bool()
    batch["next", "observation"][batch[keys.NEXT_MISSING]] = float("nan")
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic(), missing_next="root")
    found = estimator(batch.clone())
    assert estimator.num_substituted == 2  # the terminated one needs none
    whole = batch.clone()
    whole["next", "observation"][[6, 8]] = batch["observation"][[6, 8]]
    torch.testing.assert_close(found["value_target"], by_hand(whole, LMBDA))


@pytest.mark.parametrize(
    "settings", [{}, {"shifted": True, "shifted_budget": 4}, {"num_chunks": 2}]
)
def test_a_batch_without_next_observations_leaves_out_what_it_cannot_know(
    settings, critic, prepared, trajectories_of
):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    compact = batch.exclude(("next", "observation"))
    found = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic(), **settings)(compact.clone())
    _, runs = trajectories_of(batch)
    marked = batch.clone()
    flags = torch.zeros(10, dtype=torch.bool)
    flags[[rows[-1] for rows in runs]] = True
    marked[keys.NEXT_MISSING] = flags.view(2, 5)
    expected = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())(marked)
    torch.testing.assert_close(found["advantage"], expected["advantage"])
    terminated = batch["next", "terminated"].squeeze(-1)
    assert torch.equal(found[keys.NEXT_MISSING], flags.view(2, 5) & ~terminated)
    if settings.get("shifted"):
        assert torch.equal(found["shifted_valid"], ~found[keys.NEXT_MISSING])


def test_steps_of_frames_that_are_lost_carry_nothing(critic, prepared):
    batch = prepared(trajectories([3, 4], KINDS[:2]))
    lost = torch.tensor([1, 0, 0, 1, 1, 0, 0]).bool()
    batch["collector", "history_missing"] = lost
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    found = GAE(**settings)(batch.clone())
    assert not found["advantage"][lost].any()
    assert torch.equal(found["value_target"][lost], found["state_value"][lost])
    plain = GAE(**settings)(batch.exclude(("collector", "history_missing")))["advantage"][~lost]
    torch.testing.assert_close(found["advantage"][~lost], plain)
    found = GAE(average_gae=True, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found[~lost], (plain - plain.mean()) / plain.std())
    assert not found[lost].any()


def test_estimators_take_several_rewards_and_agents(curve_network, critic, prepared):
    batch = prepared(trajectories([3, 2], EndKind.TERMINATED))
    columns = torch.stack([batch["next", "reward"][:, 0]] * 6, -1) * torch.arange(1.0, 7)
    agents = batch.clone()
    agents["next", "agents"] = TensorDict(
        {
            "reward": columns.view(5, 3, 2),
            "terminated": batch["next", "terminated"][:, None].expand(5, 3, 1),
            "done": batch["next", "done"][:, None].expand(5, 3, 1),
        },
        [5],
    )
    net = TensorDictModule(
        lambda x: curve_network()(x)[..., None] * torch.arange(1.0, 7).view(3, 2),
        ["observation"],
        ["v"],
    )
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net)
    estimator.set_keys(
        reward=("agents", "reward"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
        value="v",
    )
    found = estimator(agents)["advantage"]
    one = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())(batch)["advantage"]
    torch.testing.assert_close(found, one[..., None] * torch.arange(1.0, 7).view(3, 2))


@pytest.mark.parametrize("flags", ["usual", "renamed", "of a group"])
def test_numbers_of_steps_of_another_name_say_where_trajectories_end(
    flags, critic, n_step, prepared
):
    # rows of several steps do not say which member was truncated inside of them
    end = EndKind.TERMINATED if flags == "of a group" else EndKind.TRUNCATED
    batch = n_step(prepared(trajectories([6, 4], end)), 3, GAMMA)
    estimator = TDLambdaEstimator(gamma=GAMMA, lmbda=LMBDA, value_network=critic())
    expected = estimator(batch.clone())["value_target"]
    batch.rename_key_(STEPS, ("next", "far"))
    estimator.set_keys(steps_to_next_obs="far")
    if flags != "usual":
        for name in ("done", "terminated"):
            key = ("mine", name) if flags == "of a group" else f"my_{name}"
            batch.rename_key_(("next", name), ("next", *as_tuple(key)))
            estimator.set_keys(**{name: key})
    torch.testing.assert_close(estimator(batch)["value_target"], expected)


@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator, TD1Estimator, TD0Estimator])
def test_members_of_a_group_that_terminate_before_the_others_are_cut_there(
    kind, curve_network, prepared
):
    # an agent that is out stays terminated, as environments of agents with flags of their own say
    batch = prepared(trajectories([6, 4], EndKind.TRUNCATED))
    outs = [3, 6, 1]  # steps of each trajectory that the agent plays
    step = torch.tensor([*range(6), *range(4)])
    terminated = torch.stack([step >= out - 1 for out in outs], -1)[..., None]
    over = batch["next", "done"][:, None].expand(10, 3, 1)
    reward = batch["next", "reward"][:, None] * torch.tensor([1.0, 2, 3]).double().view(3, 1)
    batch["next", "agents"] = TensorDict(
        {"reward": reward, "terminated": terminated, "done": terminated | over}, [10]
    )
    net = TensorDictModule(
        lambda x: curve_network()(x)[:, None].expand(-1, 3, 1), ["observation"], ["value"]
    )
    settings = {"lmbda": LMBDA} if kind in (GAE, TDLambdaEstimator) else {}
    estimator = kind(gamma=GAMMA, value_network=net, **settings)
    estimator.set_keys(
        **{k: ("agents", k) for k in ("reward", "done", "terminated")}, value="value"
    )
    found = estimator(batch.clone())
    for agent in range(3):
        # what one agent alone would find, whose trajectories end at its own flags
        alone = batch.exclude("collector", ("next", "agents"))
        out = torch.cat([torch.ones(1, 1).bool(), terminated[:-1, agent]])
        alone["is_init"] = batch["is_init"] | out
        for name in ("reward", "terminated", "done"):
            alone["next", name] = batch["next", "agents", name][:, agent].clone()
        alone["next", "truncated"] = alone["next", "done"] & ~alone["next", "terminated"]
        one = kind(
            gamma=GAMMA,
            value_network=TensorDictModule(curve_network(), ["observation"], ["state_value"]),
            **settings,
        )(alone)
        for name in ("advantage", "value_target"):
            torch.testing.assert_close(found[name][:, agent], one[name])


def test_value_estimate_writes_nothing(curve_network, by_hand, critic, prepared):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())
    before = set(batch.keys(True, True))
    found = estimator.value_estimate(batch)
    assert set(batch.keys(True, True)) == before
    torch.testing.assert_close(found, by_hand(batch, LMBDA))
    known = estimator.value_estimate(
        batch, next_value=curve_network()(batch["next", "observation"])
    )
    torch.testing.assert_close(known, found)


def test_vtrace_changes_no_stored_entry(actor, critic, prepared):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    copy = batch.clone()
    VTrace(gamma=0.9, actor_network=actor(), value_network=critic())(batch)
    assert (batch.select(*copy.keys(True, True)) == copy).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_of_half_precision_are_widened(dtype, prepared):
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    batch["next", "reward"] = batch["next", "reward"].to(dtype)
    net = TensorDictModule(lambda x: torch.sin(x[:, 1:]).to(dtype), ["observation"], ["v"])
    found = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net)(batch.clone())["advantage"]
    wide = TensorDictModule(lambda x: net.module(x).float(), ["observation"], ["v"])
    batch["next", "reward"] = batch["next", "reward"].float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, GAE(gamma=GAMMA, lmbda=LMBDA, value_network=wide)(batch)["advantage"]
    )


def test_a_stored_value_of_the_next_state_is_used_where_the_network_gives_the_other(
    critic, prepared
):
    batch = prepared(trajectories([4, 3], EndKind.CUT))
    stored = torch.randn(7, 1, dtype=torch.float64)
    batch["next", "state_value"] = stored
    found = TD0Estimator(gamma=0.9, value_network=critic(), skip_existing=True)(batch)
    torch.testing.assert_close(found["next", "state_value"], stored)
    torch.testing.assert_close(found["value_target"], batch["next", "reward"] + 0.9 * stored)
