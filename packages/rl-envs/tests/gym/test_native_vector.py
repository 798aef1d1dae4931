"""Vectors that reset a row while the others step, against the same rows one by one."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_envs import GymVectorEnv, RandomPolicy, SerialEnv, TransformedEnv, wire_policy
from rl_envs.testing import CountingEnv
from rl_specs import Unbounded
from rl_transforms import (
    Compose,
    DTypeCastTransform,
    InitTracker,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    Transform,
)

SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)

LENGTHS = [[3, 1, 4], [2], [5, 1, 1], [7, 2]]


class Shift(Transform):
    def apply_leaf(self, value):
        return value * 2 + 10

    def leaf_spec(self, spec):
        return Unbounded(spec.shape, dtype=spec.dtype)


def memory():
    return TensorDictPrimer(hidden=Unbounded((2,)), expand_specs=True, default_value=2.0)


CHANGES = {
    "none": Compose,
    "trackers": lambda: Compose(InitTracker(), StepCounter(), RewardSum()),
    "trackers that step": lambda: Compose(RewardSum(), StepCounter(), InitTracker()),
    "in place": lambda: Compose(Shift(["observation"]), RewardSum()),
    "new key": lambda: Compose(Shift(["observation"], ["shifted"]), InitTracker()),
    "cast": lambda: Compose(DTypeCastTransform(torch.float32, torch.float64, ["observation"])),
}


def policy():
    """A state that remembers all since it was last primed, and acts by it."""

    def step(seen, hidden):
        return torch.tanh(0.3 * hidden + 0.1 * seen[..., 1:].float())

    def act(hidden):
        return nn.functional.one_hot((hidden[..., 0] > 0.5).long(), 2).bool()

    return TensorDictSequential(
        TensorDictModule(step, ["observation", "hidden"], [("next", "hidden")]),
        TensorDictModule(act, [("next", "hidden")], ["action"]),
    )


def assert_same(one, other):
    assert one.shape == other.shape
    assert one.names == other.names
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    for key in one.keys(True, True):
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_transforms_and_recurrent_states_are_those_of_rows_one_by_one(
    name, opaque, native, one_by_one
):
    batches = []
    for base in (native(), one_by_one()):
        env = TransformedEnv(base, Compose(CHANGES[name](), memory()))
        act = policy()
        batches.append(env.rollout(23, act.forward if opaque else act, break_when_any_done=False))
    assert_same(*batches)
    assert batches[0]["next", "done"].sum(1).min() >= 4
    assert (batches[0]["hidden"] == 2).any()


def test_states_are_primed_where_a_row_really_starts(native, one_by_one):
    def act(hidden, is_init):
        return torch.where(is_init, 0, hidden) + 1, torch.eye(2)[[0, 1, 1, 0]].bool()

    counts = TensorDictModule(act, ["hidden", "is_init"], [("next", "hidden"), "action"])
    primer = TensorDictPrimer(hidden=Unbounded((1,)), expand_specs=True, default_value=5.0)
    batches = [
        TransformedEnv(base, Compose(InitTracker(), primer)).rollout(
            19, counts, break_when_any_done=False
        )
        for base in (native(), one_by_one())
    ]
    assert_same(*batches)
    first = batches[0]["is_init"]
    assert (batches[0]["hidden"][first] == 5).all()
    assert torch.equal(batches[0]["hidden"][~first], batches[0]["observation"][..., 2:][~first])


def test_a_policy_wires_a_native_vector(native):
    class Memory(nn.Module):
        in_keys, out_keys = ["observation", "hidden", "is_init"], ["action", ("next", "hidden")]

        def make_tensordict_primer(self):
            return TensorDictPrimer(hidden=Unbounded((1,)), expand_specs=True)

        def forward(self, root):
            root["next", "hidden"] = torch.where(root["is_init"], 0, root["hidden"]) + 1
            return root.set("action", torch.eye(2)[[0, 1, 1, 0]].bool())

    recurrent = Memory()
    env = wire_policy(native(), recurrent)
    assert wire_policy(env, recurrent) is env
    batch = env.rollout(11, recurrent, break_when_any_done=False)
    assert torch.equal(batch["hidden"].squeeze(-1), batch["observation"][..., 2])
    assert torch.equal(batch["is_init"].squeeze(-1), batch["observation"][..., 2] == 0)


def test_step_counts_reach_a_policy_that_reads_them(native, one_by_one):
    act = TensorDictModule(
        lambda count: nn.functional.one_hot(count.squeeze(-1) % 2, 2).bool(),
        ["step_count"],
        ["action"],
    )
    batches = [
        TransformedEnv(base, StepCounter()).rollout(9, act, break_when_any_done=False)
        for base in (native(), one_by_one())
    ]
    assert_same(*batches)
    assert torch.equal(batches[0]["action"][..., 1:].long(), batches[0]["step_count"] % 2)


@pytest.mark.parametrize("changes", ["none", "trackers", "in place"])
@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=4),
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
@settings(max_examples=20, deadline=None)
def test_successive_rollouts_lose_no_step_and_repeat_none(
    changes, lengths, parts, native, one_by_one
):
    env = TransformedEnv(native(lengths), Compose(memory(), CHANGES[changes]()))
    act = policy()
    batches = [env.rollout(parts[0], act, break_when_any_done=False)]
    for part in parts[1:]:
        batches.append(env.rollout(part, act, break_when_any_done=False, auto_reset=False))
        assert env.leftover is not None
    whole = TransformedEnv(one_by_one(lengths), Compose(memory(), CHANGES[changes]()))
    assert_same(torch.cat(batches, 1), whole.rollout(sum(parts), act, break_when_any_done=False))


def test_the_first_done_row_ends_a_rollout_that_goes_on_too(native):
    env = native()
    first = env.rollout(30)
    assert first.shape == (4, 2)
    assert first["next", "done"].squeeze(-1)[:, -1].tolist() == [False, True, False, False]
    then = env.rollout(30, auto_reset=False)
    assert then.shape == (4, 1)
    assert then["next", "done"].flatten().tolist() == [True, False, False, False]
    assert then["observation"][:, 0, 2].tolist() == [2, 0, 2, 2]


@pytest.mark.parametrize("kind", ["native", "one_by_one"])
def test_a_rollout_can_wait_until_every_row_was_done_once(kind, request):
    make = request.getfixturevalue(kind)
    batch = make().rollout(30, break_when_any_done=False, break_when_all_done=True)
    assert batch.shape == (4, 7)
    assert batch["next", "done"].squeeze(-1).any(1).all()
    assert batch["next", "done"][3].flatten().tolist() == [False] * 6 + [True]


def test_a_callback_sees_which_rows_are_steps(native):
    steps = []
    native([[1], [3]]).rollout(
        4, None, lambda env, step: steps.append(step), break_when_any_done=False
    )
    real = torch.stack([step["collector", "mask"] for step in steps], 1)
    assert real.tolist() == [[True, False] * 3 + [True], [True] * 3 + [False] + [True] * 3]
    assert steps[1]["next", "observation"][0].tolist() == [0, 1, 0]  # what the reset showed


def test_surplus_steps_are_not_mixed_with_other_keys(native):
    env = native([[1], [9]])
    env.rollout(3, break_when_any_done=False)
    scored = TensorDictSequential(
        TensorDictModule(lambda seen: seen.sum(-1), ["observation"], ["score"]),
        TensorDictModule(lambda seen: torch.eye(2).bool(), ["observation"], ["action"]),
    )
    with pytest.raises(ValueError, match=r"differ in \['score'\]"):
        env.rollout(9, scored, break_when_any_done=False, auto_reset=False)
    env = native([[1], [9]])
    env.rollout(3, break_when_any_done=False)
    shifted = TransformedEnv(env, Shift(["observation"], ["shifted"]))
    with pytest.raises(ValueError, match=r"differ in .*shifted"):
        shifted.rollout(2, auto_reset=False)


@pytest.mark.parametrize("opaque_first", [True, False])
def test_a_policy_of_unknown_keys_and_a_known_one_take_turns(opaque_first, native, one_by_one):
    """As a collector does whose first steps are random."""
    found = []
    for base in (native(), one_by_one()):
        env = TransformedEnv(base, Compose(memory(), InitTracker(), StepCounter(), RewardSum()))
        act = policy()
        first = env.rollout(5, act.forward if opaque_first else act, break_when_any_done=False)
        if base.resets_by_stepping:
            then = {}
        else:
            root = env.maybe_reset(env.next_root(first[:, -1]))
            shown = [*env.observation_spec.keys(), "done", "terminated", "truncated"]
            then = {"tensordict": root.select(*shown)}
        second = env.rollout(8, act, break_when_any_done=False, auto_reset=False, **then)
        found.append([first, second])
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_bindings_of_successive_batches_go_on(native, one_by_one):
    """What a collector does: columns with one more for the root, carried into the next ones."""
    env = TransformedEnv(native(), Compose(CHANGES["trackers"](), memory()))
    act = policy()
    want = TransformedEnv(one_by_one(), Compose(CHANGES["trackers"](), memory())).rollout(
        20, act, break_when_any_done=False
    )
    found, columns = [], None
    for _ in range(5):
        columns = _collect(env, act, columns, 7, found)
    for row in range(4):
        mine = [one for rows in found for one in rows[row]][:20]
        for key in ("observation", "hidden", "is_init", "step_count", "episode_reward"):
            assert torch.equal(torch.stack([one[key] for one in mine]), want[row, :20][key]), key


def _collect(env, act, carried, num_steps, found):
    def columns(leaves, number):
        return {key: spec.zero().numpy()[:, None].repeat(number, 1) for key, spec in leaves}

    shown = (*env.layout.shown, *env.layout.action)
    root, after = columns(shown, num_steps + 1), columns(env.layout.after, num_steps)
    root["collector", "mask"] = np.zeros((4, num_steps + 1), bool)
    binding = env.bind(root, after)
    if carried is None:
        binding.start()
    else:
        for key, column in carried.items():
            root[key][:, 0] = column[:, -1]
    binding.set_policy_next_keys({("hidden",)})
    rows = [[] for _ in range(4)]
    for t in range(num_steps):
        step = {key: torch.from_numpy(column[:, t].copy()) for key, column in root.items()}
        hidden = torch.tanh(0.3 * step["hidden",] + 0.1 * step["observation",][..., 1:])
        after["hidden",][:, t] = hidden
        root["action",][:, t] = nn.functional.one_hot((hidden[..., 0] > 0.5).long(), 2).bool()
        binding.step(t)
        binding.advance(t)
        for row in np.flatnonzero(root["collector", "mask"][:, t]):
            rows[row].append({key[0]: leaf[row] for key, leaf in step.items() if len(key) == 1})
    found.append(rows)
    return root


def test_limits_of_transforms_are_refused(native):
    with pytest.raises(ValueError, match=r"pass max_episode_steps=5 to GymVectorEnv"):
        TransformedEnv(native(), StepCounter(5))

    def cut(step):
        if "reward" in step:
            step["done"] = step["truncated"] = torch.ones(4, 1, dtype=torch.bool)
        return step

    with pytest.raises(RuntimeError, match=r"a transform ended rows \[0, 1, 2, 3\]"):
        TransformedEnv(native(), cut).rollout(3)


def test_a_reset_row_is_no_step_by_hand_either(native):
    env = native()
    step = env.rand_step(env.reset())
    step = env.rand_step(env.next_root(step))
    with pytest.raises(RuntimeError, match=r"rows \[1\] .* would only reset them"):
        env.rand_step(env.next_root(step))
    with pytest.raises(RuntimeError, match="resets single rows only while the others step"):
        env.maybe_reset(env.next_root(step))
    assert env.reset()["observation"][:, 2].tolist() == [0, 0, 0, 0]


def test_a_native_vector_cannot_be_batched_or_saved(native):
    env = native()
    for inner in (env, TransformedEnv(env)):
        with pytest.raises(ValueError, match="cannot be batched"):
            SerialEnv(1, lambda inner=inner: inner)
    with pytest.raises(NotImplementedError, match="GymVectorEnv cannot save and load its state"):
        TransformedEnv(env).state_dict()


def test_a_native_vector_has_one_seed():
    batches = []
    for _ in range(2):
        env = GymVectorEnv("CartPole-v1", 3, vectorization_mode="vector_entry_point")
        env.set_seed(4)
        torch.manual_seed(1)
        batches.append(env.rollout(30, break_when_any_done=False))
    assert_same(*batches)
    assert len(batches[0]["observation"][:, 0].unique(dim=0)) == 3


def test_an_environment_that_goes_on_by_its_root_needs_one():
    env = CountingEnv()
    assert env.leftover is None
    with pytest.raises(RuntimeError, match=r"pass tensordict=env\.reset\(\)"):
        env.rollout(3, RandomPolicy(env.action_spec), auto_reset=False)


def test_random_actions_do_not_depend_on_where_rollouts_end():
    def played(num_steps):
        torch.manual_seed(2)
        env = GymVectorEnv("CartPole-v1", 3, vectorization_mode="vector_entry_point")
        env.set_seed(1)
        return torch.cat(
            [
                env.rollout(num_steps, break_when_any_done=False, auto_reset=number == 0)
                for number in range(60 // num_steps)
            ],
            1,
        )

    assert (played(10) == played(60)).all()
