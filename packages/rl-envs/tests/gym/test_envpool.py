"""EnvPool's protocol: rows that are ready in an order of their own.

A pool that plays a script represents EnvPool, and is ready in the worst of orders.
"""

import importlib.util
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_envs import TransformedEnv
from rl_envs.gym.envpool import EnvPoolEnv
from rl_layout import keys
from rl_transforms import StepCounter

needs_envpool = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None, reason="pip install envpool"
)


class ScriptedPool:
    """Environment i shows (i, episode, step, last action); its episodes take 1 to 4 steps.

    Which rows are ready first is drawn from a generator.
    """

    single_observation_space = spaces.Box(-1, 1000, (4,), np.float32)
    single_action_space = spaces.Discrete(3)
    render_mode = None

    def __init__(self, num_envs, batch_size, seed=None, order=0):
        self.config = {"num_envs": num_envs, "batch_size": batch_size}
        self.seed = seed
        self._order = np.random.default_rng(order)
        self._episode = np.full(num_envs, -1)
        self._step = np.zeros(num_envs, int)
        self._over = np.ones(num_envs, bool)
        self._shown = np.zeros((num_envs, 4), np.float32)
        self._queue = []

    def length(self, row):
        return 1 + (row + self._episode[row]) % 4

    def async_reset(self):
        assert not self._queue, "what is under way would come back as a reset"
        self._over[:] = True
        self.send(np.full(len(self._over), -1), np.arange(len(self._over), dtype=np.int32))

    def send(self, actions, rows):
        assert rows.dtype == np.int32
        assert not set(rows.tolist()) & {row for row, _ in self._queue}, "sent twice"
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            if self._over[row]:
                self._episode[row] += 1
                self._step[row], action, reward = 0, -1, 0.0
            else:
                self._step[row] += 1
                reward = 1.0
            self._over[row] = self._step[row] == self.length(row)
            self._shown[row] = row, self._episode[row], self._step[row], action
            self._queue.append((row, (self._shown[row].copy(), reward, bool(self._over[row]))))

    def recv(self):
        size = self.config["batch_size"]
        assert len(self._queue) >= size, "EnvPool would wait forever"
        self._order.shuffle(self._queue)
        ready, self._queue = self._queue[:size], self._queue[size:]
        seen, reward, over = (np.array(part) for part in zip(*(r for _, r in ready), strict=True))
        info = {"env_id": np.array([row for row, _ in ready], np.int32)}
        return seen, reward.astype(np.float32), over, np.zeros_like(over), info

    def close(self):
        self._queue.clear()


class ScriptedEnv(EnvPoolEnv):
    def __init__(self, *args, order=0, **kwargs):
        self._order, self.seeds = order, None
        super().__init__("scripted", *args, **kwargs)

    def _pool(self, seeds=None):
        options = self._making[1]
        self.seeds = seeds
        return ScriptedPool(options["num_envs"], options["batch_size"], order=self._order)


def assert_proved(batch, start=None):
    """Every step follows the one before it, or begins the episode that comes next."""
    seen, after, done = batch["observation"], batch["next", "observation"], batch["next", "done"]
    chosen = batch["action"].int().argmax(-1)
    assert torch.equal(after[..., 3], chosen.float())
    assert torch.equal(after[..., :2], seen[..., :2])
    assert torch.equal(after[..., 2], seen[..., 2] + 1)
    assert (batch["next", "reward"] == 1).all()
    over = after[..., 2] == 1 + (after[..., 0] + after[..., 1]) % 4
    assert torch.equal(over, done.squeeze(-1))
    goes_on = ~done[:, :-1].squeeze(-1)
    assert torch.equal(after[:, :-1][goes_on], seen[:, 1:][goes_on])
    begins = seen[:, 1:][~goes_on]
    assert (begins[:, 2] == 0).all()
    assert torch.equal(begins[:, 1], after[:, :-1][~goes_on][:, 1] + 1)


@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_rollouts_lose_and_repeat_no_step_in_any_order(wait_for, groups, lengths, order):
    env = ScriptedEnv(wait_for * groups, wait_for=wait_for, order=order)
    batches = [env.rollout(lengths[0], break_when_any_done=False)]
    batches += [
        env.rollout(length, break_when_any_done=False, auto_reset=False) for length in lengths[1:]
    ]
    batch = torch.cat(batches, 1)
    assert batch.shape == (wait_for * groups, sum(lengths))
    assert batches[0].names == [None, keys.TIME]
    assert (batch["observation"][:, 0, 1:3] == 0).all()
    assert_proved(batch)
    root = env.reset()  # nothing is under way
    assert (root["observation"][:, 2] == 0).all()


def test_steps_beyond_a_rollout_open_the_next_one():
    env = ScriptedEnv(6, wait_for=3)
    most = 0
    env.rollout(5, break_when_any_done=False)
    for _ in range(20):
        most = max(most, env.leftover.num_steps)
        env.rollout(5, break_when_any_done=False, auto_reset=False)
    assert most > 0


def test_a_policy_sees_the_rows_that_are_ready():
    sizes = set()

    def act(seen):
        sizes.add(len(seen))
        return torch.eye(3, dtype=torch.bool)[seen[:, 2].long() % 3], seen[:, :1] * 2

    policy = TensorDictModule(act, ["observation"], ["action", "twice"])
    env = ScriptedEnv(6, wait_for=3)
    batch = env.rollout(7, policy, break_when_any_done=False)
    assert_proved(batch)
    assert sizes <= {1, 2, 3}
    assert torch.equal(batch["twice"].squeeze(-1), 2 * batch["observation"][..., 0])
    assert torch.equal(batch["action"].int().argmax(-1).float(), batch["observation"][..., 2] % 3)


def test_actions_of_another_dtype_are_cast_where_that_is_exact():
    choices = torch.eye(3, dtype=torch.int64)

    def act(seen):
        return choices[seen[:, 2].long() % 3]

    policy = TensorDictModule(act, ["observation"], ["action"])
    batch = ScriptedEnv(6, wait_for=3).rollout(7, policy, break_when_any_done=False)
    assert_proved(batch)
    assert batch["action"].dtype == torch.bool
    assert torch.equal(batch["action"].int().argmax(-1).float(), batch["observation"][..., 2] % 3)


def test_a_later_action_that_its_dtype_cannot_hold_is_refused():
    calls = []

    def act(seen):
        calls.append(len(seen))
        chosen = torch.eye(3, dtype=torch.int64)[torch.zeros(len(seen), dtype=torch.int64)]
        return 2 * chosen if len(calls) == 3 else chosen  # no bool holds a 2

    policy = TensorDictModule(act, ["observation"], ["action"])
    with pytest.raises(TypeError, match="action"):
        ScriptedEnv(6, wait_for=3).rollout(7, policy, break_when_any_done=False)


def test_transforms_that_need_all_rows_wait_for_them():
    env = ScriptedEnv(6, wait_for=3)
    batch = TransformedEnv(env, StepCounter()).rollout(9, break_when_any_done=False)
    assert_proved(batch)
    assert torch.equal(batch["step_count"].squeeze(-1).float(), batch["observation"][..., 2])
    assert env.rollout(9).shape == (6, 1)  # environment 0 is done after one step
    calls = []
    env.rollout(3, callback=lambda _, step: calls.append(step), break_when_any_done=False)
    assert all(step.shape == (6,) for step in calls)
    step = ScriptedEnv(2, wait_for=1)
    root = step.rand_step(step.reset())
    assert root["next", "observation"][:, :3].tolist() == [[0, 0, 1], [1, 0, 1]]


def test_a_policy_that_fails_leaves_nothing_under_way():
    calls = []

    def act(seen):
        calls.append(len(seen))
        if len(calls) == 3:
            raise ZeroDivisionError
        return torch.eye(3, dtype=torch.bool)[torch.zeros(len(seen), dtype=torch.long)]

    policy = TensorDictModule(act, ["observation"], ["action"])
    env = ScriptedEnv(6, wait_for=2)
    with pytest.raises(ZeroDivisionError):
        env.rollout(5, policy, break_when_any_done=False)
    with pytest.raises(RuntimeError, match="nothing to continue"):
        env.rollout(5, break_when_any_done=False, auto_reset=False)
    with pytest.raises(RuntimeError, match=r"rows are (over|under way)"):
        env.step(env.rand_action())
    assert_proved(env.rollout(5, break_when_any_done=False))


def test_wait_for_refuses_unsupported_calls():
    with pytest.raises(ValueError, match="must divide num_envs, 6: got 4"):
        ScriptedEnv(6, wait_for=4)
    with pytest.raises(ValueError, match="leave out wait_for"):
        ScriptedEnv(6, wait_for=3, info_keys=["elapsed_step"])
    env = ScriptedEnv(6, wait_for=3)
    carried = TensorDictModule(lambda seen: seen, ["observation"], [("next", "state")])
    hot = TensorDictModule(lambda seen: seen[:, :3] > 0, ["observation"], ["action"])
    with pytest.raises(ValueError, match=re.escape("carries [('next', 'state')] on")):
        env.rollout(3, TensorDictSequential(carried, hot), break_when_any_done=False)
    with pytest.raises(KeyError, match=r"action 'action' is missing: the policy wrote \['a'\]"):
        env.rollout(
            3,
            TensorDictModule(lambda seen: seen, ["observation"], ["a"]),
            break_when_any_done=False,
        )


def test_seeds_make_a_new_pool():
    env = ScriptedEnv(3)
    env.reset()
    assert env.seeds is None
    env.set_seed(5)
    env.reset()
    assert len(set(env.seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in env.seeds)


@pytest.mark.skipif(importlib.util.find_spec("envpool") is not None, reason="EnvPool is there")
def test_envpool_env_names_the_extra_to_install():
    with pytest.raises(ImportError, match=r"pip install rl-envs\[envpool\]"):
        EnvPoolEnv("CartPole-v1", 2)


@pytest.fixture
def pool():
    made = []

    def make(**kwargs):
        made.append(EnvPoolEnv("CartPole-v1", 6, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


@needs_envpool
@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")
def test_envpool_plays_the_same_whoever_is_waited_for(pool):
    left = TensorDictModule(
        lambda seen: torch.stack([seen[:, 2] < 0, seen[:, 2] >= 0], -1), ["observation"], ["action"]
    )
    batches = []
    for wait_for in (None, 2, 3):
        env = pool(wait_for=wait_for)
        env.set_seed(3)
        batches.append(env.rollout(150, left, break_when_any_done=False))
    assert batches[0]["next", "done"].sum() > 6
    for batch in batches:
        done = batch["next", "done"].squeeze(-1)
        same = (batch["next", "observation"][:, :-1] == batch["observation"][:, 1:]).all(-1)
        assert torch.equal(same, ~done[:, :-1])
        assert (batch == batches[0]).all()


@needs_envpool
@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")
def test_envpool_goes_on_and_shows_its_info(pool):
    env = pool(wait_for=2, max_episode_steps=9)
    first = env.rollout(20, break_when_any_done=False)
    second = env.rollout(20, break_when_any_done=False, auto_reset=False)
    batch = torch.cat([first, second], 1)
    assert batch["next", "truncated"].sum() == 6 * 4
    same = (batch["next", "observation"][:, :-1] == batch["observation"][:, 1:]).all(-1)
    assert torch.equal(same, ~batch["next", "done"][:, :-1].squeeze(-1))
    steps = pool(max_episode_steps=9, info_keys=["elapsed_step"]).rollout(9)
    assert torch.equal(steps["next", "elapsed_step"], steps["elapsed_step"] + 1)


@pytest.mark.parametrize("wait_for", [None, 3])
def test_a_rollout_of_a_pool_is_a_move(wait_for):
    env = ScriptedEnv(6, wait_for=wait_for)
    before = env.moves
    env.rollout(5, break_when_any_done=False)
    assert env.moves > before
