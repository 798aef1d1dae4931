"""Every space, seen and acted, through everything that an environment is put into."""

from copy import deepcopy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, check_env_specs
from rl_envs.testing import check_conformance
from rl_layout import keys

SPACES = {
    "box": spaces.Box(-1, 2, (2, 3), np.float64),
    "half bounded": spaces.Box(np.array([-np.inf, 0], "f4"), np.array([1, np.inf], "f4")),
    "free": spaces.Box(-np.inf, np.inf, (1,), np.float32),
    "bytes": spaces.Box(0, 255, (5, 3), np.uint8),
    "flags": spaces.Box(0, 1, (3,), bool),
    "wide": spaces.Box(0, 60000, (3,), np.uint16),
    "discrete": spaces.Discrete(5, start=3),
    "multi discrete": spaces.MultiDiscrete([2, 7], start=[4, -5]),
    "grid": spaces.MultiDiscrete(np.array([[2, 3, 4], [5, 6, 7]])),
    "multi binary": spaces.MultiBinary((2, 3)),
    "text": spaces.Text(5, charset="abc"),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.Box(0, 1, (2,))]),
    "all": spaces.Dict(
        parts=spaces.Tuple(
            [
                spaces.Dict(text=spaces.Text(4, charset="ab"), on=spaces.MultiBinary(2)),
                spaces.Tuple([spaces.MultiDiscrete([2, 5])]),
            ]
        ),
        view=spaces.Dict(image=spaces.Box(0, 255, (2, 3), np.uint8)),
    ),
}


class Mirror(gymnasium.Env):
    """Shows the action that it was given, as it came; ends after three steps."""

    def __init__(self, space):
        nests = isinstance(space, spaces.Dict)  # whose names would be those of both
        self.observation_space = spaces.Dict(seen=space) if nests else space
        self.action_space = spaces.Dict(acted=space) if nests else space
        self.names = ("seen", "acted") if nests else None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(100)))
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        shown = deepcopy(action)
        if self.names:
            shown = {"seen": shown["acted"]}
        return shown, 1.0, self.steps == 3, False, {}


each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


some_spaces = pytest.mark.parametrize("space", [SPACES[name] for name in ("text", "wide", "all")])


def assert_mirrored(batch):
    """Each step shows its own action."""
    acted = {key[1:]: leaf for key, leaf in keys.leaves(batch) if key[0] in ("action", "acted")}
    after = {
        key[2:]: leaf
        for key, leaf in keys.leaves(batch)
        if key[:2] in ((keys.NEXT, "observation"), (keys.NEXT, "seen"))
    }
    assert acted.keys() == after.keys()
    for key, leaf in acted.items():
        is_text = "text" in key or (leaf.shape[-1:] == (5,) and not leaf.is_floating_point())
        both = [cut(one) if is_text else one for one in (leaf, after[key])]
        assert torch.equal(*both), key


def cut(numbers):
    """Drop the characters after the end of a text."""
    return numbers * (numbers != 0).cumprod(-1)


@pytest.mark.parametrize("categorical", [False, True])
@each_space
def test_alone(space, categorical):
    make = lambda: GymEnv(Mirror(space), categorical_action_encoding=categorical)  # noqa: E731
    check_env_specs(make())
    check_conformance(make)
    batch = make().rollout(7, break_when_any_done=False)
    assert batch.shape == (7,)
    if categorical:
        assert_mirrored(batch)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@each_space
def test_vectors_handle_every_space(space, mode):
    made = SyncVectorEnv([lambda: Mirror(space)] * 3, autoreset_mode=mode)
    with GymVectorEnv(made, categorical_action_encoding=True) as env:
        assert_mirrored(env.rollout(7, break_when_any_done=False))


@some_spaces
def test_async_vectors_handle_every_space(space):
    made = AsyncVectorEnv(
        [lambda: Mirror(space)] * 2, autoreset_mode=AutoresetMode.DISABLED, context="fork"
    )
    with GymVectorEnv(made) as env:
        check_env_specs(env)
        assert env.rollout(7, break_when_any_done=False).shape == (2, 7)


@some_spaces
def test_serial_and_parallel_handle_every_space(space):
    def make():
        return GymEnv(Mirror(space), categorical_action_encoding=True)

    batches = []
    with ParallelEnv(2, make, mp_start_method="fork") as parallel:
        for env in (SerialEnv(2, make), parallel):
            assert env.native_rows
            check_env_specs(env)
            env.set_seed(3)
            torch.manual_seed(5)
            batches.append(env.rollout(7, break_when_any_done=False))
            assert_mirrored(batches[-1])
    assert (batches[0] == batches[1]).all()


@each_space
def test_the_slow_path_does_what_the_fast_one_does(space):
    batches, env = [], GymEnv(Mirror(space))
    actions = env.full_action_spec.rand((7,))
    for fast in (True, False):
        env.native_rows = fast
        env.set_seed(3)
        given = iter(actions.unbind(0))
        policy = lambda root, given=given: root.update(next(given))  # noqa: E731
        batches.append(env.rollout(7, policy, break_when_any_done=False))
    assert (batches[0] == batches[1]).all()
