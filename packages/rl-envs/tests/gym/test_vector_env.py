import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictModule

from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_envs.testing import check_conformance
from rl_transforms import RewardSum, StepCounter

MODES = list(AutoresetMode)


@pytest.mark.parametrize("mode", MODES)
def test_every_autoreset_mode_plays_what_a_serial_env_does(mode):
    batches = []
    for env in (
        GymVectorEnv("CartPole-v1", 3, autoreset_mode=mode),
        SerialEnv(3, lambda: GymEnv("CartPole-v1")),
    ):
        env.set_seed(5)
        torch.manual_seed(2)
        batches.append(env.rollout(60, break_when_any_done=False))
        env.close()
    one, other = batches
    assert one["next", "done"].sum() >= 3  # final observations and resets are among them
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_transformed", [False, True])
def test_rows_that_end_together_are_reset_once(mode, is_transformed):
    seen = []
    for env in (
        GymVectorEnv("CartPole-v1", 2, autoreset_mode=mode, max_episode_steps=3),
        SerialEnv(2, lambda: GymEnv("CartPole-v1", max_episode_steps=3)),
    ):
        with TransformedEnv(env, RewardSum()) if is_transformed else env as played:
            played.set_seed(5)
            root = played.reset()
            for _ in range(7):
                action = torch.tensor([[True, False], [False, True]])
                step, root = played.step_and_maybe_reset(root.set("action", action))
                seen.append(step["next", "observation"])
                seen.append(root["observation"])
    one, other = torch.stack(seen).chunk(2)
    assert torch.equal(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_processes_do_what_one_process_does(mode):
    batches = []
    for vectorization in ("sync", "async"):
        with GymVectorEnv(
            "CartPole-v1", 2, vectorization_mode=vectorization, autoreset_mode=mode
        ) as env:
            env.set_seed(5)
            torch.manual_seed(2)
            batches.append(env.rollout(40, break_when_any_done=False))
    assert (batches[0] == batches[1]).all()


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_vectors_keep_every_promise(name, mode):
    check_conformance(lambda: GymVectorEnv(name, 3, autoreset_mode=mode))


@pytest.mark.parametrize("fast", [True, False])
def test_the_slow_path_does_what_the_fast_one_does(fast):
    with GymVectorEnv("CartPole-v1", 3, autoreset_mode=AutoresetMode.SAME_STEP) as env:
        env.native_rows = fast
        env.set_seed(5)
        batch = env.rollout(30, _left)
        env.set_seed(5)
        env.native_rows = True
        assert (batch == env.rollout(30, _left)).all()


def _left(root):
    return root.set("action", torch.tensor([[True, False]] * 3))


def test_same_step_resets_only_what_is_done():
    with GymVectorEnv("Pendulum-v1", 2, autoreset_mode=AutoresetMode.SAME_STEP) as env:
        env.reset()
        with pytest.raises(RuntimeError, match=r"rows \[1\] continue.*max_episode_steps"):
            env.reset_into({}, np.array([[False], [True]]))


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.SAME_STEP])
def test_rows_that_a_transform_ends_together_are_reset_as_by_hand(mode):
    with TransformedEnv(GymVectorEnv("Pendulum-v1", 2, autoreset_mode=mode), StepCounter(3)) as env:
        seen = []
        for by_hand in (True, False):
            env.set_seed(5)
            root = env.rollout(1, _still)[:, -1]
            env.set_seed(7)  # for the next reset of all rows
            root = env.next_root(root)
            if not by_hand:
                options = {"auto_reset": False, "break_when_any_done": False}
                seen.append(env.rollout(6, _still, tensordict=root, **options)["observation"])
                continue
            steps = []
            for _ in range(6):
                steps.append(root["observation"])
                root = env.step_and_maybe_reset(_still(root))[1]
            seen.append(torch.stack(steps, 1))
        assert torch.equal(*seen)


def _still(root):
    return root.set("action", torch.zeros(2, 1))


def test_rows_that_are_over_are_named():
    with GymVectorEnv("Pendulum-v1", 2, max_episode_steps=1) as env:
        root = env.rand_action(env.reset())
        env.step(root)
        with pytest.raises(RuntimeError, match=r"rows \[0, 1\] .* are over: reset them"):
            env.step(root)


def test_a_step_before_a_reset_and_a_closed_one_are_refused():
    env = GymVectorEnv("CartPole-v1", 2)
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step_into({}, {})
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset_into({})


def native(num_envs=3, **kwargs):
    return GymVectorEnv("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", **kwargs)


def test_reset_rows_of_a_native_vector_are_never_stored():
    env = native(max_episode_steps=40)
    env.set_seed(3)
    batch = env.rollout(200, break_when_any_done=False)
    done, seen, after = batch["next", "done"].squeeze(-1), batch["observation"], batch["next"]
    assert batch.shape == (3, 200)
    assert (after["reward"] == 1).all()  # a row that was only reset has reward 0
    assert done.sum(-1).min() >= 5
    goes_on = ~done[:, :-1]
    assert torch.equal(after["observation"][:, :-1][goes_on], seen[:, 1:][goes_on])
    assert (seen[:, 1:][~goes_on].abs() <= 0.05).all()  # an episode begins near the middle
    last = after["observation"][done]
    falls = (last[:, 0].abs() > 2.4) | (last[:, 2].abs() > 12 * 2 * np.pi / 360)
    assert torch.equal(falls, after["terminated"][done].squeeze(-1))


def test_a_native_vector_can_stop_at_the_first_done_row():
    env = native()
    batch = env.rollout(300)
    assert batch["next", "done"][:, -1].any()
    assert not batch["next", "done"][:, :-1].any()


def test_a_policy_acts_on_every_row_of_a_native_vector():
    env = native(categorical_action_encoding=True)
    policy = TensorDictModule(lambda seen: (seen[:, 2] > 0).long(), ["observation"], ["action"])
    batch = env.rollout(150, policy, break_when_any_done=False)
    assert torch.equal(batch["action"], (batch["observation"][..., 2] > 0).long())


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="at least 1: got None"):
        GymVectorEnv("CartPole-v1")
    with pytest.raises(ValueError, match=r"vectorization_mode must be one of.*got 'threads'"):
        GymVectorEnv("CartPole-v1", 2, vectorization_mode="threads")
    made = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(TypeError, match="the environment is made"):
        GymVectorEnv(made, 2)
    assert GymVectorEnv(made).batch_size == (2,)
    made.close()


class Odd(gymnasium.Env):
    observation_space = spaces.Dict(place=spaces.Discrete(9, start=3), on=spaces.MultiBinary(2))
    action_space = spaces.Dict(turn=spaces.Discrete(3), parts=spaces.MultiDiscrete([2, 5]))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return {"place": 3, "on": np.zeros(2, np.int8)}, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        shown = {"place": 3 + self.steps, "on": np.array([0, self.steps % 2], np.int8)}
        return shown, float(action["parts"][1]), self.steps == 4, False, {}


@pytest.mark.parametrize("mode", MODES)
def test_dictionaries_of_spaces_are_understood(mode):
    made = gymnasium.vector.SyncVectorEnv([Odd, Odd, Odd], autoreset_mode=mode)
    with GymVectorEnv(made) as env:
        batch = env.rollout(6, break_when_any_done=False)
    assert batch["next", "place"].tolist() == [[1, 2, 3, 4, 1, 2]] * 3
    chosen = batch["parts"][..., 2:].int().argmax(-1)
    assert torch.equal(batch["next", "reward"].squeeze(-1), chosen.float())


class Tenfold(GymVectorEnv):
    """Ten times the rewards, and resets that are seen at one place."""

    def _reset(self, tensordict, **kwargs):
        return super()._reset(tensordict, **kwargs).set("observation", torch.full((3, 4), 0.25))

    def _step(self, tensordict):
        after = super()._step(tensordict)
        return after.set("reward", 10 * after["reward"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_transformed", [False, True])
def test_steps_and_resets_of_a_subclass_are_called(mode, is_transformed):
    vector = Tenfold("CartPole-v1", 3, autoreset_mode=mode)
    with TransformedEnv(vector, RewardSum()) if is_transformed else vector as env:
        root = env.reset()
        assert (root["observation"] == 0.25).all()
        step = env.step(env.rand_action(root))
        assert (step["next", "reward"] == 10).all()
        batch = env.rollout(40, break_when_any_done=False)
        assert (batch["next", "reward"] == 10).all()
        done = batch["next", "done"].squeeze(-1)
        begins = batch["observation"].eq(0.25).all(-1)
        assert begins[:, 0].all()
        assert torch.equal(begins[:, 1:], done[:, :-1])
        assert done.any()
