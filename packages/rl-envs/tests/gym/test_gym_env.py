import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_envs import GymEnv, ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_envs.testing import check_conformance
from rl_transforms import RewardSum, StepCounter


class Odd(gymnasium.Env):
    """Every kind of space at once; the action comes back as it came."""

    observation_space = spaces.Dict(
        place=spaces.Discrete(5, start=3),
        view=spaces.Dict(image=spaces.Box(0, 255, (5, 3), np.uint8), on=spaces.MultiBinary(2)),
        parts=spaces.MultiDiscrete([2, 7]),
    )
    action_space = spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,)))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        return self._show(), float(action["turn"]), self.steps == 3, False, {}

    def _show(self):
        image = np.full((5, 3), self.steps, np.uint8)
        view = {"image": image, "on": np.array([0, 1], np.int8)}
        return {"place": 3 + self.steps, "view": view, "parts": np.array([1, self.steps])}


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"])
@pytest.mark.parametrize("categorical", [False, True])
def test_gymnasium_environments_keep_every_promise(name, categorical):
    check_conformance(lambda: GymEnv(name, categorical_action_encoding=categorical))


@pytest.mark.parametrize("categorical", [False, True])
def test_every_space_is_understood(categorical):
    env = GymEnv(Odd(), categorical_action_encoding=categorical)
    check_env_specs(env)
    batch = env.rollout(5)
    assert batch["next", "view", "image"][:, 0, 0].tolist() == [1, 2, 3]
    assert batch["place"].tolist() == [0, 1, 2]  # counted from 0
    assert batch["turn"].shape == ((3,) if categorical else (3, 3))


def test_the_same_seed_gives_what_gymnasium_gives():
    env, plain = GymEnv("CartPole-v1"), gymnasium.make("CartPole-v1")
    env.set_seed(5)
    first, _ = plain.reset(seed=5)
    assert env.reset()["observation"].tolist() == first.tolist()
    root = env.rand_action(env.reset()).set("action", torch.tensor([False, True]))
    plain.reset()
    step = env.step(root)
    expected, reward, *_ = plain.step(1)
    assert step["next", "observation"].tolist() == expected.tolist()
    assert step["next", "reward"].tolist() == [reward]


def test_a_time_limit_truncates():
    batch = GymEnv("Pendulum-v1", max_episode_steps=3).rollout(7)
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True]
    assert not batch["next", "terminated"].any()


def test_the_final_observation_is_real():
    env = GymEnv("Pendulum-v1", max_episode_steps=3)
    batch = env.rollout(7, break_when_any_done=False)
    moved = batch["next", "observation"][:-1] - batch["observation"][1:]
    assert moved.abs().sum(-1).bool().tolist() == [False, False, True, False, False, True]


def test_actions_are_one_hot_unless_asked_otherwise():
    assert GymEnv("CartPole-v1").action_spec.shape == (2,)
    assert GymEnv("CartPole-v1", categorical_action_encoding=True).action_spec.shape == ()


def test_a_step_after_the_end_is_refused():
    env = GymEnv("Pendulum-v1", max_episode_steps=1)
    root = env.rand_action(env.reset())
    env.step(root)
    with pytest.raises(RuntimeError, match=r"is over: call reset\(\)"):
        env.step(root)


def test_rows_before_a_reset_and_after_a_close_are_refused():
    env = GymEnv("CartPole-v1")
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step_into({("action",): np.array([True, False])}, {})
    env.close()
    for call in (lambda: env.reset_into({}), lambda: env.step_into({}, {})):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_made_environment_takes_no_more_arguments():
    with pytest.raises(TypeError, match=r"\['max_episode_steps'\] go to gymnasium.make"):
        GymEnv(Odd(), max_episode_steps=3)


def test_an_observation_of_another_shape_is_named():
    class Wrong(Odd):
        observation_space = spaces.Box(0, 1, (3,))
        action_space = spaces.Discrete(2)

        def _show(self):
            return np.zeros(5, "float32")

    with pytest.raises(ValueError, match=r"'observation': expected shape \(3,\), got \(5,\)"):
        GymEnv(Wrong()).reset()


def test_an_action_can_be_taken_for_several_frames():
    batches = []
    for frames in (1, 3):
        env = GymEnv("CartPole-v1", frame_skip=frames, max_episode_steps=8)
        env.set_seed(3)
        act = lambda root: root.set("action", torch.tensor([True, False]))  # noqa: E731
        batches.append(env.rollout(20, act))
    frames, steps = batches
    assert steps["next", "reward"].flatten().tolist() == [3, 3, 2]
    assert torch.equal(steps["observation"], frames["observation"][::3])
    assert torch.equal(steps["next", "observation"][-1], frames["next", "observation"][-1])
    assert env.state_dict()["state"]["gym"]["counters"]["_elapsed_steps"] == 8
    with pytest.raises(ValueError, match="frame_skip: expected at least 1, got 0"):
        GymEnv("CartPole-v1", frame_skip=0)


class Tenfold(GymEnv):
    """Ten times the rewards, and resets that are seen at one place."""

    def _reset(self, tensordict, **kwargs):
        return super()._reset(tensordict, **kwargs).set("observation", torch.full((4,), 0.25))

    def _step(self, tensordict):
        after = super()._step(tensordict)
        return after.set("reward", 10 * after["reward"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tenfold("CartPole-v1"),
        lambda: SerialEnv(2, lambda: Tenfold("CartPole-v1")),
        lambda: ParallelEnv(2, lambda: Tenfold("CartPole-v1"), mp_start_method="fork"),
        lambda: TransformedEnv(Tenfold("CartPole-v1"), RewardSum()),
        lambda: SerialEnv(2, lambda: TransformedEnv(Tenfold("CartPole-v1"), StepCounter())),
    ],
    ids=["alone", "serial", "parallel", "transformed", "serial and transformed"],
)
def test_steps_and_resets_of_a_subclass_are_called_wherever_it_is_played(make):
    with make() as env:
        root = env.reset()
        assert (root["observation"] == 0.25).all()
        step = env.step(env.rand_action(root))
        assert (step["next", "reward"] == 10).all()
        assert (step["next", "observation"] != 0.25).all()
        batch = env.rollout(30, break_when_any_done=False)
        assert (batch["next", "reward"] == 10).all()
        begins = batch["observation"].flatten(0, -2).eq(0.25).all(-1).sum()
        last = batch["next", "done"].select(-2, -1).sum()
        assert begins == env.batch_size.numel() + batch["next", "done"].sum() - last


def test_a_subclass_with_steps_of_its_own_steps_from_an_action_alone():
    env = Tenfold("CartPole-v1")
    env.reset()
    assert env.rand_step()["next", "reward"].item() == 10
