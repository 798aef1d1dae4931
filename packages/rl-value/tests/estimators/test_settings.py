"""Settings of estimators: per step, by other names, without effect."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
)

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import GAE, TD0Estimator, TDLambdaEstimator, VTrace

GAMMA, LMBDA = 0.9, 0.7

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)

STEPS = keys.STEPS_TO_NEXT_OBS

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def test_time_may_be_another_dimension(critic, prepared):
    batch = prepared(environments(3, 5, [2, 4], KINDS))
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    expected = GAE(**settings)(batch.clone())
    plain = TensorDict(batch.to_dict(), [3, 5])
    swapped = TensorDict(plain.transpose(0, 1).to_dict(), [5, 3])
    named = swapped.clone()
    named.names = ["time", None]
    for found in (GAE(time_dim=0, **settings)(swapped), GAE(**settings)(named)):
        for key in ("advantage", "value_target", "state_value"):
            torch.testing.assert_close(found[key].transpose(0, 1), expected[key])
    for estimator in (GAE(**settings), GAE(time_dim=1, **settings)):  # what is said last wins
        found = estimator(swapped.clone(), time_dim=0)
        torch.testing.assert_close(found["advantage"].transpose(0, 1), expected["advantage"])
        target = estimator.value_estimate(swapped.clone(), time_dim=0)
        torch.testing.assert_close(target.transpose(0, 1), expected["value_target"])
    assert swapped.names == [None, None]
    with pytest.raises(ValueError, match=r"time_dim=2: the batch is \[3, 5\]"):
        GAE(time_dim=2, **settings)(plain)


def test_averages_are_over_the_steps_that_count(critic, prepared):
    batch = prepared(trajectories([3, 4], EndKind.TRUNCATED))
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 0, 0, 0, 0, 1]).bool()
    batch[keys.MASK] = torch.tensor([0, 1, 1, 1, 1, 1, 1]).bool()
    batch["next", "reward"][0] = 1e9  # padding
    settings = {"gamma": 0.9, "lmbda": 0.9, "value_network": critic()}
    plain = GAE(**settings)(batch.clone())["advantage"][1:6]
    found = GAE(average_gae=True, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found[1:6], (plain - plain.mean()) / plain.std())
    assert found[0] == found[6] == 0
    reward = batch["next", "reward"][1:]
    scaled = batch.clone()
    scaled["next", "reward"][1:] = (reward - reward[:-1].mean()) / reward[:-1].std()
    expected = GAE(**settings)(scaled)["advantage"]
    found = GAE(average_rewards=True, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found, expected)


def test_entries_of_other_names_are_read_and_written(critic, prepared):
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    expected = GAE(**settings)(batch.clone())
    renamed = batch.exclude("is_init", "collector")
    for old, new in (("reward", "gain"), ("done", "over"), ("terminated", "dead")):
        renamed["next", new] = renamed["next", old]
    renamed = renamed.exclude(*(("next", k) for k in ("reward", "done", "terminated", "truncated")))
    estimator = GAE(**settings)
    estimator.set_keys(
        reward="gain", done="over", terminated=("next", "dead"), advantage=("gae", "a")
    )
    torch.testing.assert_close(estimator(renamed)["gae", "a"], expected["advantage"])


def test_discount_may_be_one_per_step(curve_network, critic, prepared):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    gamma = torch.rand(2, 5, 1, dtype=torch.float64)
    found = TD0Estimator(gamma=gamma, value_network=critic())(batch.clone())["value_target"]
    ahead = curve_network()(batch["next", "observation"]).masked_fill(
        batch["next", "terminated"], 0
    )
    torch.testing.assert_close(found, (batch["next", "reward"] + gamma * ahead).detach())


@pytest.mark.parametrize("name", ["gamma", "lmbda"])
@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator, VTrace])
def test_settings_per_step_lie_as_the_batch_does(kind, name, actor, critic, prepared):
    batch = prepared(environments(4, 4, [3, 2], KINDS))
    batch[keys.MASK] = torch.arange(16).view(4, 4) % 5 != 1
    each = torch.rand(4, 4, 1, dtype=torch.float64)
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    settings |= {"actor_network": actor()} if kind is VTrace else {}
    found = kind(**{**settings, name: each})(batch.clone())["value_target"]
    plain = TensorDict(batch.to_dict(), [4, 4])
    turned = TensorDict(plain.transpose(0, 1).to_dict(), [4, 4])
    estimator = kind(time_dim=0, **{**settings, name: each.transpose(0, 1)})
    torch.testing.assert_close(estimator(turned)["value_target"].transpose(0, 1), found)
    real = batch[keys.MASK].view(-1)
    flat = batch.reshape(-1)[real]  # the same segments without padding, by their markers
    alone = kind(**{**settings, name: each.view(-1, 1)[real]})(flat)["value_target"]
    torch.testing.assert_close(found.view(-1, 1)[real], alone)


def test_settings_do_not_change_the_precision():
    batch = trajectories([3], EndKind.TRUNCATED)
    net = TensorDictModule(lambda x: torch.sin(x[:, 1:]), ["observation"], ["v"])
    gamma, lmbda = torch.tensor([0.9]).double(), torch.tensor(0.5).double()
    found = GAE(gamma=gamma, lmbda=lmbda, value_network=net)(batch.clone())["advantage"]
    assert found.dtype == torch.float32
    plain = GAE(gamma=0.9, lmbda=0.5, value_network=net)(batch.clone())["advantage"]
    torch.testing.assert_close(found, plain)
    batch[STEPS] = torch.ones(3, 1, dtype=torch.int64)
    batch["next", "reward"] = torch.zeros(3, 1).half()
    made = TD0Estimator(gamma=0.99, value_network=net)(batch)
    torch.testing.assert_close(made["value_target"], 0.99 * made["next", "v"])


def test_plain_tensors_may_be_passed(critic, prepared):
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())
    advantage, target = estimator(
        observation=batch["observation"],
        next_observation=batch["next", "observation"],
        next_reward=batch["next", "reward"],
        next_done=batch["next", "done"],
        next_terminated=batch["next", "terminated"],
    )
    torch.testing.assert_close(advantage, estimator(batch)["advantage"])
    torch.testing.assert_close(target, batch["value_target"])


def test_settings_that_change_nothing_are_accepted(critic, prepared):
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    found = GAE(deactivate_vmap=True, num_chunk=2, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found, GAE(**settings)(batch)["advantage"])


@pytest.mark.parametrize("setting", [{"vectorized": False}, {"device": "cpu"}])
@pytest.mark.parametrize(("kind", "more"), [(GAE, {"lmbda": LMBDA}), (TD0Estimator, {})])
def test_settings_without_effect_are_deprecated_at_the_caller(kind, more, setting, critic):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(setting))} has no effect") as caught:
        kind(gamma=GAMMA, value_network=critic(), **more, **setting)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("flag", [keys.NEXT_MISSING, keys.HISTORY_MISSING])
def test_rewards_of_steps_left_out_are_not_in_their_mean(flag, critic, prepared):
    batch = prepared(trajectories([5], EndKind.CUT))
    batch[flag] = torch.tensor([0, 1, 0, 0, 0]).bool()
    made = TD0Estimator(gamma=0.0, value_network=critic(), average_rewards=True)
    few = made(batch.clone())["value_target"]
    batch["next", "reward"][1] = 1e6
    torch.testing.assert_close(made(batch)["value_target"], few)
    rest = batch["next", "reward"][[0, 2, 3, 4]]
    torch.testing.assert_close(few[[0, 2, 3, 4]], (rest - rest.mean()) / rest.std())
