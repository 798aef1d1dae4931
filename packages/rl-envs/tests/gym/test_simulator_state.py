import gymnasium
import pytest
import torch

from rl_envs import GymEnv
from rl_envs.gym.simulator_state import get_state, set_state

NAMES = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_state_goes_on_through_limits_and_resets(name):
    env = GymEnv(name, max_episode_steps=9)
    env.set_seed(3)
    env.rollout(5)
    other = GymEnv(name, max_episode_steps=9)
    other.load_state_dict(env.state_dict())
    batches = []
    for one in (env, other):
        torch.manual_seed(1)
        root = one.rand_action().update(one.observation_spec.zero())
        batches.append(
            one.rollout(20, break_when_any_done=False, auto_reset=False, tensordict=root)
        )
    assert (batches[0]["next"] == batches[1]["next"]).all()
    assert batches[0]["next", "done"].flatten().nonzero()[0] <= 3  # the limit continues as well


def test_a_seed_that_waits_is_saved():
    env, other = GymEnv("CartPole-v1"), GymEnv("CartPole-v1")
    env.set_seed(7)
    other.load_state_dict(env.state_dict())
    assert torch.equal(env.reset()["observation"], other.reset()["observation"])


def test_a_state_is_tensors_numbers_and_strings():
    def plain(value):
        if isinstance(value, dict):
            return all(plain(inner) for inner in value.values())
        return value is None or isinstance(value, torch.Tensor | int | float | str | list)

    env = GymEnv("CartPole-v1")
    env.rollout(3)
    assert plain(env.state_dict())


def test_a_state_does_not_follow_the_environment():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    state = get_state(env)
    first = [env.step(1)[0].tolist() for _ in range(3)]
    set_state(env, state)
    assert [env.step(1)[0].tolist() for _ in range(3)] == first


def test_other_wrappers_and_environments_are_refused_by_name():
    rescaled = gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1)
    with pytest.raises(NotImplementedError, match="state of RescaleAction"):
        GymEnv(rescaled).state_dict()
    with pytest.raises(NotImplementedError, match="state of FrozenLakeEnv"):
        GymEnv("FrozenLake-v1").state_dict()


def test_a_state_of_other_wrappers_is_refused():
    state = get_state(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="counters"):
        set_state(gymnasium.make("CartPole-v1").unwrapped, state)
