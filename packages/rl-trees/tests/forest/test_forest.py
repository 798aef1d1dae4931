from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_envs import GymEnv
from rl_trees import MCTSForest

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
STEP = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5), st.booleans())
ROLLOUTS = st.lists(st.lists(STEP, min_size=1, max_size=8), max_size=5)


@quiet
@given(ROLLOUTS)
def test_steps_are_counted_and_kept_as_in_a_dict(root_of, rollout_of, loops, rollouts):
    forest, counts, rewards = MCTSForest(), {}, {}
    for steps in rollouts:
        forest.extend(rollout_of(steps))
        for number, step in enumerate(steps):
            counts[step[:3]] = counts.get(step[:3], 0) + 1
            rewards[step[:3]] = (number + 1.0, step[3])
    assert len(forest) == len(counts)
    assert forest.num_nodes == len({o for step in counts for o in (step[0], step[2])})
    for observation in {step[0] for step in counts}:
        tree = forest.get_tree(root_of(observation), max_depth=1, compact=False)
        expected = [step for step in counts if step[0] == observation]
        children = [] if tree.subtree is None else tree.subtree
        assert [(observation, int(c.prev_action), int(c.node_observation)) for c in children] == (
            expected
        )
        assert [int(child.count) for child in children] == [counts[step] for step in expected]
        for child, step in zip(children, expected, strict=True):
            row = child.rollout[0]
            assert (row["next", "reward"].item(), row["next", "done"].item()) == rewards[step]
            assert child.is_terminal == rewards[step][1]


def test_rollout_comes_back_bit_for_bit():
    forest, count = MCTSForest(action_keys="u", observation_keys=["pixels", ("s", "x")]), 9
    seen = {"pixels": torch.randint(0, 256, (10, 2, 3), dtype=torch.uint8)}
    x = torch.randn(10, dtype=torch.float64)
    before = TensorDict({"pixels": seen["pixels"][:-1], ("s", "x"): x[:-1]}, [count])
    after = TensorDict(
        {
            "pixels": seen["pixels"][1:],
            ("s", "x"): x[1:],
            "reward": torch.randn(count, 1),
            "terminated": torch.arange(count)[:, None] == count - 1,
            "info": torch.arange(count),
        },
        [count],
    )
    rollout = before.clone().update({"u": torch.randn(count, 2)})
    rollout.set("next", after)
    copy = rollout.clone()
    tree = forest.extend(rollout, return_node=True)
    assert (rollout == copy).all()
    assert (tree.rollout == rollout).all()
    assert (forest.get_tree(before[0], compact=False).rollout_from_path((0,) * 9) == rollout).all()
    assert tree.is_terminal
    assert tree.wins.item() == pytest.approx(after["reward"][-1].item())


def test_batches_of_any_shape_and_single_steps_are_steps(root_of, rollout_of):
    flat, shaped, single = MCTSForest(), MCTSForest(), MCTSForest()
    steps = rollout_of([(i, i % 2, i + 1, False) for i in range(6)])
    flat.extend(steps)
    shaped.extend(steps.reshape(2, 3))
    for step in steps:
        single.add(step)
    root = root_of(0)
    assert flat.to_string(root) == shaped.to_string(root) == single.to_string(root)
    assert flat.extend(steps[:0]) is None
    assert single.add(steps[3], return_node=True).node_observation == 6


def test_children_are_the_results_of_actions_most_often_seen(rollout_of):
    forest = MCTSForest()
    forest.extend(rollout_of([(0, 1, 5, False), (0, 1, 7, False), (0, 1, 7, False)]))
    forest.extend(rollout_of([(2, 0, 3, True), (2, 0, 4, False)]))
    asked = TensorDict({"observation": torch.tensor([2, 0]), "action": torch.tensor([0, 1])}, [2])
    found = forest.get_child(asked)
    assert found["next", "observation"].tolist() == [3, 7]
    assert found["next", "reward"].squeeze(-1).tolist() == [1, 3]
    assert forest.get_child(asked[1])["next", "observation"] == 7
    with pytest.raises(KeyError, match=r"1 of 2 actions were never taken at .* index \(1,\)"):
        forest.get_child(asked.clone().set("action", torch.tensor([0, 2])))


def test_rewards_and_dones_are_those_of_the_named_entries(rollout_of):
    steps = rollout_of([(0, 0, 1, True)])
    steps["next", "cost"] = torch.tensor([[2.0, 3.0]])
    forest = MCTSForest(reward_keys="cost", done_keys=[], excluded_keys=["reward"])
    tree = forest.extend(steps, return_node=True)
    assert tree.wins == 5.0
    assert not tree.is_terminal
    assert set(tree.rollout["next"].keys()) == {"observation", "cost", "done"}


def test_steps_without_results_are_stored_too(root_of, rollout_of, tmp_path):
    steps = rollout_of([(0, 0, 1, False), (1, 0, 2, False)]).exclude(("next", "reward"))
    steps = steps.exclude(("next", "done"))
    forest, other = MCTSForest(), MCTSForest()
    forest.extend(steps)
    assert list(forest.get_tree(root_of(0)).rollout["next"].keys()) == ["observation"]
    forest.dumps(tmp_path)
    other.loads(tmp_path)
    assert other.to_string(root_of(0)) == forest.to_string(root_of(0))


def test_names_are_those_of_an_environment():
    env = GymEnv("CartPole-v1")
    forest = MCTSForest(action_keys=["action"])
    forest.get_keys_from_env(env)
    assert forest.observation_keys == ["observation"]
    assert forest.reward_keys == ["reward"]
    assert set(forest.done_keys) == {"done", "terminated", "truncated"}
    forest.extend(env.rollout(20))
    assert len(forest) > 5
    forest.get_keys_from_env(env)

    class Other:
        reward_keys, done_keys, action_keys = ["r"], ["d"], ["a"]
        observation_keys = ["pixels"]  # noqa: RUF012

    named = MCTSForest()
    named.extend(env.rollout(3))
    with pytest.raises(RuntimeError, match=r"take the names before the first steps"):
        named.get_keys_from_env(Other())


def test_a_full_forest_says_what_to_do_and_writes_nothing(root_of, rollout_of):
    forest = MCTSForest(max_size=2)
    forest.extend(rollout_of([(0, 0, 1, False)]))
    message = "1 of at most 2 keys are stored, and 2 of these 3 are new: give max_size=3"
    with pytest.raises(RuntimeError, match=message):
        forest.extend(rollout_of([(0, 0, 1, False), (1, 0, 2, False), (1, 1, 9, False)]))
    assert (len(forest), forest.num_nodes) == (1, 2)
    assert forest.get_tree(root_of(0)).count == 1
    forest.extend(rollout_of([(1, 1, 9, False), (0, 0, 1, False)]))
    assert forest.get_tree(root_of(0)).rollout["next", "observation"].tolist() == [1, 9]


def test_steps_that_are_refused_leave_nothing(rollout_of):
    forest = MCTSForest()
    forest.extend(rollout_of([(0, 0, 1, False)]))
    with pytest.raises(KeyError):
        forest.extend(rollout_of([(4, 0, 5, False)]).exclude(("next", "reward")))
    assert (len(forest), forest.num_nodes) == (1, 2)
    steps = rollout_of([(4, 0, 5, False)])
    steps["action"] = steps["action"].float()
    with pytest.raises(ValueError, match=r"keys are 'action' int64 \[\], .* got 'action' float32"):
        forest.extend(steps)
    assert forest.num_nodes == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation_keys": "x"}, r"made of \['x'\], and 'x' is missing. There are: \('next'"),
        ({"action_keys": "x"}, r"made of \['x'\], and 'x' is missing"),
        ({"reward_keys": "x"}, "reward_keys names 'x', and 'next' has done, observation, reward"),
        ({"done_keys": "x"}, "done_keys names 'x'"),
    ],
)
def test_a_rollout_without_the_named_entries_is_refused(rollout_of, options, message):
    with pytest.raises(KeyError, match=message):
        MCTSForest(**options).extend(rollout_of([(0, 0, 1, False)]))


def test_what_is_not_there_is_an_error(root_of, rollout_of):
    with pytest.raises(KeyError, match="the forest holds no steps: extend it first"):
        MCTSForest().get_tree(root_of(0))
    forest = MCTSForest()
    with pytest.raises(KeyError, match="a rollout has a group 'next', this one has observation"):
        forest.extend(root_of([1]))
    forest.extend(rollout_of([(0, 0, 1, False)]))
    with pytest.raises(KeyError, match="1 of 1 observations are in no stored step"):
        forest.get_tree(root_of(8))
    with pytest.raises(ValueError, match="max_depth: expected at least 0, got -1"):
        forest.get_tree(root_of(0), max_depth=-1)


def test_a_dump_restores_the_forest(root_of, rollout_of, tmp_path):
    forest, other = MCTSForest(), MCTSForest(max_size=9)
    for begin in (0, 2):
        forest.extend(rollout_of([(i, begin, i + 1, i == 3) for i in range(begin, 4)]))
    forest.dumps(tmp_path)
    other.loads(tmp_path)
    assert other.to_string(root_of(0), repr) == forest.to_string(root_of(0), repr)
    other.extend(rollout_of([(0, 7, 8, False)]))
    assert other.get_tree(root_of(0)).num_children == 2
    with pytest.raises(ValueError, match="holds 6 steps, more than max_size"):
        MCTSForest(max_size=5).loads(tmp_path)
    with pytest.raises(ValueError, match=r"holds steps by \['observation'\] and \['action'\]"):
        MCTSForest(action_keys="u").loads(tmp_path)


def test_what_is_no_step_and_no_environment_is_named():
    forest = MCTSForest()
    for call in (forest.extend, forest.add):
        with pytest.raises(TypeError, match=r"(rollout|step): expected a tensordict, got 3"):
            call(3)
    for call in (forest.get_tree, forest.get_child, forest.to_string):
        with pytest.raises(TypeError, match="root: expected a tensordict, got 3"):
            call(3)
    with pytest.raises(TypeError, match="env: expected an environment with specs, got 3"):
        forest.get_keys_from_env(3)
    with pytest.raises(TypeError, match="tree: expected a Tree, got 3"):
        MCTSForest.valid_paths(3)
    with pytest.raises(TypeError, match="done_keys: expected a list of keys, got 3"):
        MCTSForest(done_keys=3)
