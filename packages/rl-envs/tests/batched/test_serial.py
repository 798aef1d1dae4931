import pytest
import torch

from rl_envs import GymEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import (
    CountingEnv,
    EpisodeStepEnv,
    GroupsEnv,
    MultiAgentEnv,
    NestedEnv,
    check_conformance,
)
from rl_transforms import InitTracker, NextObservationDelta


@pytest.mark.parametrize(
    "make",
    [
        CountingEnv,
        lambda: NestedEnv([(2, "truncated")], batch_size=(3,)),
        GroupsEnv,
        lambda: MultiAgentEnv(3),
        lambda: GymEnv("CartPole-v1"),
        lambda: SerialEnv(3, CountingEnv),
    ],
    ids=["counting", "nested", "groups", "agents", "gym", "serial"],
)
def test_a_batch_keeps_every_promise(make):
    check_conformance(lambda: SerialEnv(2, make))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        lambda env: GymEnv(env.env),
        lambda env: TransformedEnv(env, InitTracker()),
        lambda env: SerialEnv(1, lambda: env),
    ],
    ids=["same", "gym", "transformed", "serial"],
)
def test_workers_that_step_one_environment_are_refused(wrap):
    env = GymEnv("CartPole-v1")
    with pytest.raises(ValueError, match=r"workers 0 and 1 step one environment, <CartPole.* new"):
        SerialEnv(2, lambda: wrap(env))


def test_each_row_is_what_its_environment_gives_alone():
    makers = [
        lambda n=n: EpisodeStepEnv([(2, "terminated")], first_episode=100 * n) for n in (1, 2)
    ]
    batch = SerialEnv(2, makers).rollout(5, break_when_any_done=False)
    for row, make in zip(batch, makers, strict=True):
        alone = make().rollout(5, break_when_any_done=False)
        assert torch.equal(row["observation"], alone["observation"])
        assert torch.equal(row["next", "observation"], alone["next", "observation"])


def test_seeds_chain_from_worker_to_worker():
    env = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
    following = env.set_seed(5)
    seeds = [5]
    for _ in range(3):
        seeds.append(GymEnv("CartPole-v1").set_seed(seeds[-1]))
    assert following == seeds[3]
    first = env.reset()["observation"]
    for row, seed in zip(first, seeds, strict=False):
        alone = GymEnv("CartPole-v1")
        alone.set_seed(seed)
        assert torch.equal(row, alone.reset()["observation"])


def test_a_static_seed_makes_all_alike():
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    assert env.set_seed(5, static_seed=True) == 5
    assert torch.equal(*env.reset()["observation"])


def test_a_reset_by_mask_alone_leaves_other_workers():
    env = SerialEnv(3, lambda: EpisodeStepEnv([(9, "terminated")]))
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    env.reset(root.select().set("_reset", torch.tensor([[True], [False], [False]])))
    after = env.rand_step(root)["next", "observation"]
    assert after.tolist() == [[1, 1], [0, 2], [0, 2]]


def test_rows_are_written_in_place():
    import numpy as np

    env = SerialEnv(2, lambda: EpisodeStepEnv([(1, "terminated")]))
    rows = {("observation",): np.full((2, 2), 9, "float32")}
    env.reset_into(rows)
    after = {("observation",): np.zeros((2, 2), "float32"), ("done",): np.zeros((2, 1), bool)}
    env.step_into({("action",): np.eye(2) > 0}, after)
    assert after["observation",].tolist() == [[0, 1], [0, 1]]
    env.reset_into(rows, np.array([[False], [True]]))
    assert rows["observation",].tolist() == [[0, 0], [1, 0]]


def test_environments_that_differ_are_refused():
    with pytest.raises(ValueError, match="worker 1 differs from worker 0 in observation_spec"):
        SerialEnv(2, [CountingEnv, EpisodeStepEnv])
    with pytest.raises(ValueError, match="one for each of 3 workers: got 2"):
        SerialEnv(3, [CountingEnv, CountingEnv])
    with pytest.raises(ValueError, match="num_workers: expected at least 1, got 0"):
        SerialEnv(0, CountingEnv)


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
@pytest.mark.parametrize("makers", ["CartPole-v1", ["CartPole-v1", CountingEnv]])
def test_an_id_in_the_place_of_a_function_is_named_with_the_function(kind, makers):
    with pytest.raises(TypeError, match=r"got 'CartPole-v1': give lambda: GymEnv\('CartPole-v1'\)"):
        kind(2, makers)


def test_arguments_may_differ_from_worker_to_worker():
    env = SerialEnv(2, CountingEnv, [{"max_steps": 2}, {"max_steps": 3}])
    done = env.rollout(3, break_when_any_done=False)["next", "done"]
    assert done.squeeze(-1).tolist() == [[False, True, False], [False, False, True]]


def test_closing_closes_all():
    env = SerialEnv(2, CountingEnv)
    env.close()
    assert all(inner.is_closed for inner in env.envs)


def test_a_transform_that_must_stand_outside_is_refused_inside():
    def make():
        return TransformedEnv(EpisodeStepEnv(), NextObservationDelta())

    with pytest.raises(ValueError, match="NextObservationDelta cannot sit in a worker"):
        SerialEnv(2, make)
    with pytest.raises(ValueError, match="NextObservationDelta cannot sit in a worker"):
        SerialEnv(2, lambda: TransformedEnv(make(), InitTracker()))
