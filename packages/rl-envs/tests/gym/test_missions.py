"""Spaces of missions: texts that a function makes, as MiniGrid has them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_envs import Alphabet, GymEnv, ParallelEnv, check_env_specs
from rl_envs.gym.missions import LONGEST, with_texts


class MissionSpace(spaces.Space):
    """Has what MiniGrid's has: a function, and the words that it is called with."""

    def __init__(self, mission_func, ordered_placeholders=None):
        super().__init__(dtype=str)
        self.mission_func, self.ordered_placeholders = mission_func, ordered_placeholders

    def sample(self):
        words = self.ordered_placeholders or ()
        return self.mission_func(
            *(choices[self.np_random.integers(len(choices))] for choices in words)
        )


class AnyMission(MissionSpace):
    """Holds missions that its function does not make."""


class Errand(gymnasium.Env):
    """Shows where it is and what to do."""

    action_space = spaces.Discrete(2)

    def __init__(self):
        mission = MissionSpace(
            lambda what, how: f"{how} {what}", [["key", "ball"], ["go", "fetch"]]
        )
        place = spaces.Box(0, 9, (1,), np.uint8)
        self.observation_space = spaces.Dict({"mission": mission, "place": place})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.mission = ["go ball", "fetch key"][int(self.np_random.integers(2))]
        return {"mission": self.mission, "place": np.zeros(1, np.uint8)}, {}

    def step(self, action):
        return {"mission": self.mission, "place": np.ones(1, np.uint8)}, 1.0, False, False, {}


def test_missions_are_texts():
    env = GymEnv(Errand())
    check_env_specs(env)
    alphabet = Alphabet(env.observation_space["mission"])
    found = set()
    for seed in range(8):
        env.set_seed(seed)
        found.add(alphabet.text_of(env.rollout(2)["next", "mission"][-1]))
    assert found == {"go ball", "fetch key"}


def test_there_is_room_for_the_longest():
    space = with_texts(Errand().observation_space)
    assert space["mission"].max_length == len("fetch ball")
    assert with_texts(AnyMission(lambda: "")).max_length == LONGEST
    plain = spaces.Dict({"place": spaces.Discrete(2)})
    assert with_texts(plain) is plain


@pytest.mark.parametrize(
    "name", ["MiniGrid-Empty-5x5-v0", "MiniGrid-Fetch-5x5-N2-v0", "BabyAI-GoToObj-v0"]
)
def test_environments_of_minigrid(name):
    pytest.importorskip("minigrid")
    env = GymEnv(name)
    check_env_specs(env)
    env.set_seed(0)
    batch = env.rollout(3)
    shown = gymnasium.make(name).reset(seed=0)[0]
    assert (
        Alphabet(env.observation_space["mission"]).text_of(batch["mission"][0]) == shown["mission"]
    )
    assert batch["image"].dtype.itemsize == 1
    with ParallelEnv(2, lambda: GymEnv(name), mp_start_method="fork") as several:
        assert several.rollout(3, break_when_any_done=False)["mission"].shape[:2] == (2, 3)
