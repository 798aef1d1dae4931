"""Steps and resets of a subclass of a batch, or set on one object, are those of rollouts too."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_transforms import RewardSum


class Tenfold:
    """Ten times the rewards, and resets that show 0.25."""

    def _reset(self, tensordict, **kwargs):
        root = super()._reset(tensordict, **kwargs)
        return root.set("observation", torch.full_like(root["observation"], 0.25))

    def _step(self, tensordict):
        after = super()._step(tensordict)
        return after.set("reward", 10 * after["reward"])


class TenfoldSerial(Tenfold, SerialEnv):
    """Several environments in turn."""


class TenfoldParallel(Tenfold, ParallelEnv):
    """Several environments in processes."""


class TenfoldTransformed(Tenfold, TransformedEnv):
    """An environment and its transforms."""


def cartpole():
    return GymEnv("CartPole-v1")


def changed(env):
    """The same, set on one object after it was played."""
    env.rollout(3)
    step, reset = env._step, env._reset

    def tenfold(tensordict):
        after = step(tensordict)
        return after.set("reward", 10 * after["reward"])

    def seen(tensordict, **kwargs):
        root = reset(tensordict, **kwargs)
        return root.set("observation", torch.full_like(root["observation"], 0.25))

    env._step, env._reset = tenfold, seen
    return env


fork = partial(ParallelEnv, mp_start_method="fork")
MADE = {
    "serial subclass": lambda: TenfoldSerial(2, cartpole),
    "serial subclass of plain ones": lambda: TenfoldSerial(2, lambda: CountingEnv(3)),
    "parallel subclass": lambda: TenfoldParallel(2, cartpole, mp_start_method="fork"),
    "parallel subclass of plain ones": lambda: TenfoldParallel(
        2, lambda: CountingEnv(3), mp_start_method="fork"
    ),
    "transformed subclass": lambda: TransformedEnv(TenfoldSerial(2, cartpole), RewardSum()),
    "gym": lambda: changed(cartpole()),
    "serial": lambda: changed(SerialEnv(2, cartpole)),
    "parallel": lambda: changed(fork(2, cartpole)),
    "vector": lambda: changed(
        GymVectorEnv("CartPole-v1", 2, autoreset_mode=AutoresetMode.DISABLED)
    ),
    "inside a batch": lambda: SerialEnv(2, lambda: changed(cartpole())),
    "inside a process": lambda: fork(2, lambda: changed(cartpole())),
    "subclass with transforms": lambda: TenfoldTransformed(cartpole(), RewardSum()),
    "inside transforms": lambda: TransformedEnv(changed(cartpole()), RewardSum()),
    "transformed": lambda: changed(TransformedEnv(cartpole(), RewardSum())),
}


@pytest.mark.parametrize("name", MADE)
def test_another_step_and_another_reset_are_called_wherever_they_are(name):
    with MADE[name]() as env:
        root = env.reset()
        assert (root["observation"] == 0.25).all()
        step = env.step(env.rand_action(root))
        assert (step["next", "reward"] == 10).all()
        batch = env.rollout(30, break_when_any_done=False)
        assert (batch["next", "reward"] == 10).all()
        begins = batch["observation"].flatten(0, -2).eq(0.25).all(-1).sum()
        last = batch["next", "done"].select(-2, -1).sum()
        assert begins == env.batch_size.numel() + batch["next", "done"].sum() - last


def test_a_step_set_after_steps_by_hand_is_noticed():
    env = TransformedEnv(cartpole(), RewardSum())
    env.rand_step(env.reset())
    changed(env.base_env)
    assert env.rand_step(env.reset())["next", "reward"].item() == 10


def test_a_vector_that_resets_rows_while_others_step_refuses_other_steps():
    class TenfoldVector(Tenfold, GymVectorEnv):
        pass

    made = partial(gymnasium.make_vec, "CartPole-v1", 2, "vector_entry_point")
    plain = GymVectorEnv(made())
    plain._step = plain._step
    for env in (
        TenfoldVector(made()),
        plain,
        TenfoldTransformed(GymVectorEnv(made()), RewardSum()),
    ):
        with pytest.raises(TypeError, match=r"a step or a reset of its own.*SAME_STEP"):
            env.rollout(3)
