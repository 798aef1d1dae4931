import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_envs.rollouts import RolloutPlayer, RolloutRequest
from rl_envs.rollouts.column_steps import FIRST_STEPS, why_not_columns
from rl_envs.rollouts.surplus import real_steps
from rl_specs import Unbounded
from rl_tensordict import TensorStep
from rl_transforms import TensorDictPrimer


def policy():
    weights = torch.linspace(-1, 1, 8).reshape(4, 2)
    return TensorDictSequential(
        TensorDictModule(lambda seen: seen @ weights, ["observation"], ["logits"]),
        TensorDictModule(
            lambda logits: nn.functional.one_hot(logits.argmax(-1), 2).bool(),
            ["logits"],
            ["action"],
        ),
    )


def cartpoles(number):
    make = lambda: GymEnv("CartPole-v1", max_episode_steps=13)  # noqa: E731
    return SerialEnv(number, make) if number else make()


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("break_when_any_done", [True, False])
def test_column_steps_equals_the_tensordict_steps(number, break_when_any_done):
    batches = []
    for fast in (True, False):
        env = cartpoles(number)
        env.native_rows = fast
        env.set_seed(5)
        batches.append(env.rollout(41, policy(), break_when_any_done=break_when_any_done))
    one, other = batches
    assert one.shape == other.shape
    assert one.names == other.names
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


@pytest.mark.parametrize("number", [0, 3])
def test_column_steps_waits_for_all_rows_as_the_tensordict_steps(number):
    batches = []
    for fast in (True, False):
        env = cartpoles(number)
        env.native_rows = fast
        env.set_seed(5)
        waits = {"break_when_any_done": False, "break_when_all_done": True}
        batches.append(env.rollout(41, policy(), **waits))
        batches.append(env.rollout(41, policy(), break_when_any_done=False))
    for one, other in zip(batches[:2], batches[2:], strict=True):
        assert (one == other).all()
    assert batches[0]["next", "done"][..., -1, :].any()
    assert batches[0]["next", "done"].any(-2).all()


@pytest.mark.parametrize("number", [0, 3])
def test_column_steps_continues_from_a_root_as_the_tensordict_steps(number):
    batches = []
    for fast in (True, False):
        env = cartpoles(number)
        env.native_rows = fast
        env.set_seed(5)
        first = env.rollout(9, policy(), break_when_any_done=False)
        root = env.maybe_reset(env.next_root(first[..., -1]))
        given = root.clone()
        going_on = {"auto_reset": False, "break_when_any_done": False}
        batches.append(env.rollout(30, policy(), tensordict=root, **going_on))
        assert (root == given).all()
    assert (batches[0] == batches[1]).all()
    assert set(batches[0].keys(True, True)) == set(batches[1].keys(True, True))


def test_a_root_with_more_than_the_environment_shows_takes_the_slow_path():
    env = GymEnv("CartPole-v1")
    root = env.reset()
    assert not why_not_columns(env, RolloutRequest(3), root)
    root["goal"] = torch.ones(2)
    assert (
        why_not_columns(env, RolloutRequest(3), root)
        == "the root holds other entries than a reset writes"
    )
    assert env.rollout(1, auto_reset=False, tensordict=root)["goal"].tolist() == [[1, 1]]
    with pytest.raises(ValueError, match="expected batch size"):
        env.rollout(1, auto_reset=False, tensordict=root.unsqueeze(0))


@pytest.mark.parametrize("number", [0, 3])
def test_modules_look_at_entries_that_they_do_not_read_at_the_first_step(number):
    class Acting(TensorStep):
        in_keys, out_keys, seen = ["observation"], ["action"], ()

        def check_entries(self, entries):
            self.seen = (*self.seen, entries)

        def step(self, observation):
            return (nn.functional.one_hot((observation[..., 0] > 0).long(), 2).bool(),)

    act, env = Acting(), cartpoles(number)
    batch = env.rollout(9, act, break_when_any_done=False)
    (entries,) = act.seen
    assert {"observation", "done", "terminated"} <= {key for (key,) in entries}
    assert torch.equal(entries[("observation",)], batch["observation"].select(-2, 0))


def test_random_actions_lie_in_their_spec():
    env = GymEnv("Pendulum-v1")
    batch = env.rollout(7)
    assert env.action_spec.is_in(batch["action"])
    assert len(batch["action"].unique()) == 7


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    bad_at = None

    def reset(self, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, "float32"), {}

    def step(self, action):
        self.steps += 1
        value = np.nan if self.steps == self.bad_at else (self.steps % 7) / 7
        return np.full(2, value, "float32"), float(self.steps), False, False, {}


def test_room_for_steps_grows_as_it_is_needed():
    num_steps = 2 * FIRST_STEPS + 3
    batch = GymEnv(Endless()).rollout(num_steps)
    assert batch["next", "reward"].flatten().tolist() == list(range(1, num_steps + 1))
    assert torch.equal(batch["observation"][1:], batch["next", "observation"][:-1])
    assert (batch["action"].sum(-1) == 1).all()


def test_room_grows_for_a_policy_too():
    turns = []

    def act(seen):
        turns.append(len(turns))
        return torch.tensor([True, False])

    batch = GymEnv(Endless()).rollout(
        FIRST_STEPS + 2, TensorDictModule(act, ["observation"], ["action"])
    )
    assert batch["action"][:, 0].all()
    assert len(turns) == FIRST_STEPS + 2


def test_nan_is_refused():
    env = GymEnv(Endless())
    env.env.bad_at = 3
    with pytest.raises(ValueError, match="'observation' holds NaN"):
        env.rollout(5)


def test_set_truncated_marks_the_last_step():
    batch = GymEnv(Endless()).rollout(3, set_truncated=True)
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True]


def test_set_truncated_leaves_a_terminated_step_alone():
    batch = GymEnv("CartPole-v1").rollout(500, set_truncated=True)
    assert batch["next", "terminated"][-1]
    assert not batch["next", "truncated"].any()


def test_callbacks_take_the_slow_path():
    env = GymEnv(Endless())
    assert not why_not_columns(env, RolloutRequest(3), None)
    request = RolloutRequest(3, callback=print)
    assert why_not_columns(env, request, None) == "a callback sees each step"


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda seen: torch.zeros(5).bool(), ValueError, r"'action': expected shape \(2,\)"),
        (lambda seen: torch.ones(2) / 2, TypeError, "'action': expected dtype torch.bool"),
    ],
)
def test_a_wrong_action_is_refused(act, error, words):
    with pytest.raises(error, match=words):
        GymEnv(Endless()).rollout(3, TensorDictModule(act, ["observation"], ["action"]))


def test_a_policy_without_an_action_is_refused():
    with pytest.raises(KeyError, match="'action' is missing"):
        GymEnv(Endless()).rollout(3, TensorDictModule(nn.Identity(), ["observation"], ["other"]))


def test_a_policy_that_overwrites_an_entry_in_another_form_is_refused():
    policy = TensorDictModule(
        lambda seen: (torch.tensor([True, False]), seen.double()),
        ["observation"],
        ["action", "observation"],
    )
    with pytest.raises(ValueError, match="'observation' overwrites an entry"):
        GymEnv(Endless()).rollout(3, policy)


def test_a_policy_output_must_begin_with_the_batch():
    env = SerialEnv(3, lambda: GymEnv(Endless()))
    policy = TensorDictModule(
        lambda seen: (torch.eye(2)[[0, 1, 0]].bool(), torch.zeros(5)),
        ["observation"],
        ["action", "extra"],
    )
    with pytest.raises((ValueError, RuntimeError), match=r"batch"):
        env.rollout(2, policy)


def test_a_recurrent_state_lives_on_where_room_grows():
    primer = TensorDictPrimer(hidden=Unbounded((1,)), expand_specs=True)
    env = TransformedEnv(GymEnv(Endless()), primer)
    policy = TensorDictModule(
        lambda hidden: (torch.tensor([True, False]), hidden + 1),
        ["hidden"],
        ["action", ("next", "hidden")],
    )
    batch = env.rollout(FIRST_STEPS + 3, policy)
    assert batch["hidden"].flatten().tolist() == list(range(FIRST_STEPS + 3))


def test_real_steps_closes_the_gaps_of_a_mask():
    mask = torch.tensor([[True, False, True], [True, True, True]])
    batch = TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3])
    steps = real_steps(batch.set(("collector", "mask"), mask), 2)
    assert steps["a"].tolist() == [[0, 2], [3, 4]]
    assert list(steps.keys()) == ["a"]


class Starts(gymnasium.Env):
    """Episodes of some steps; the observations of the first resets are given."""

    observation_space, action_space = (
        gymnasium.spaces.Box(-1, 1, (2,)),
        gymnasium.spaces.Discrete(2),
    )

    def __init__(self, *starts, length=2):
        self.starts, self.length, self.count = [*starts], length, 0

    def reset(self, **given):
        self.count = 0
        start = self.starts.pop(0) if self.starts else 0.0
        return np.full(2, start, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == self.length, False, {}


@pytest.mark.parametrize("wrong", [3.0, np.nan])
@pytest.mark.parametrize(("number", "batches"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_reset_outside_its_spec_is_refused_by_the_batch_that_holds_it(wrong, number, batches):
    # batches of three steps, continued: resets are before rows 0, 2, 4 and 6
    env = GymEnv(Starts(*[0.0] * number, wrong))
    player = RolloutPlayer(env)
    request = RolloutRequest(3, break_when_any_done=False, continues=True)
    for _ in range(batches + (number == 3)):
        player.play(request)
    with pytest.raises(ValueError, match=r"'observation' (is outside its spec|holds NaN)"):
        player.play(request)


def test_a_reset_after_the_last_step_is_refused_by_the_next_batch():
    player = RolloutPlayer(GymEnv(Starts(0.0, 3.0, length=2)))
    request = RolloutRequest(1, break_when_any_done=False, continues=True)
    for _ in range(2):
        player.play(request)
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        player.play(request)


def test_roots_that_the_policy_writes_are_checked_like_others():
    def act(seen):
        return torch.tensor([True, False]), seen + 5

    policy = TensorDictModule(act, ["observation"], ["action", "observation"])
    player = RolloutPlayer(GymEnv(Starts()), policy)
    request = RolloutRequest(1, break_when_any_done=False, continues=True)
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        player.play(request)
