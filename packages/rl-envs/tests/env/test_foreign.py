import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_transforms import RewardSum


class TurnsEnv:
    """Looks like PettingZoo's AEC environments, which are no subclass of Gymnasium's."""

    possible_agents = ("first", "second")
    agent_selection = "first"


class NamedAgentsEnv:
    """Looks like PettingZoo's parallel environments."""

    possible_agents = ("first", "second")


@pytest.mark.parametrize(
    "give",
    [GymEnv, GymVectorEnv, lambda env: TransformedEnv(env, RewardSum()), None],
)
def test_environments_of_other_libraries_are_refused_with_what_makes_one(give):
    def made(kind):
        return SerialEnv(2, kind) if give is None else give(kind())

    for kind in (TurnsEnv, NamedAgentsEnv):
        with pytest.raises(TypeError, match=rf"{kind.__name__}.*PettingZooEnv\(env\) makes one"):
            made(kind)


def test_environments_of_gymnasium_are_refused_with_their_wrapper():
    cases = [
        (lambda: SerialEnv(2, lambda: gymnasium.make("CartPole-v1")), r"GymEnv\(env\)"),
        (lambda: GymEnv(gymnasium.make_vec("CartPole-v1")), r"GymVectorEnv\(env\)"),
        (lambda: TransformedEnv(GymEnv, RewardSum()), "It can be called"),
    ]
    for call, said in cases:
        with pytest.raises(TypeError, match=said):
            call()


class ListEnv(gymnasium.Env):
    """Observations are lists; `reset` returns a prescribed value."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, first):
        self.first = first

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return [0.5, 0.0], 1.0, False, False, {}


def test_observations_may_be_lists():
    found = GymEnv(ListEnv(([0.0, 0.5], {}))).rollout(2)["next", "observation"]
    assert found.tolist() == [[0.5, 0.0], [0.5, 0.0]]


def test_an_observation_of_two_numbers_is_not_taken_for_observation_and_info():
    with pytest.raises(
        TypeError, match=r"must return \(observation, info\): got list: \[0.0, 0.5\]"
    ):
        GymEnv(ListEnv([0.0, 0.5])).reset()


def test_a_reset_without_a_seed_is_told_what_it_is_called_with():
    class WithoutSeed(ListEnv):
        def reset(self):
            return self.first

    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'") as caught:
        GymEnv(WithoutSeed(([0.0, 0.5], {}))).reset()
    assert "is called with seed= and options=" in caught.value.__notes__[0]
