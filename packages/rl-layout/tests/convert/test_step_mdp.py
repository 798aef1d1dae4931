from __future__ import annotations

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict

from rl_layout import step_mdp
from rl_layout.testing import trajectories


def step():
    one, two = torch.ones(3, 1), torch.full((3, 1), 2.0)
    agents = TensorDict({"observation": one, "action": one, "extra": one}, [3])
    later = TensorDict({"observation": two, "reward": two, "done": two.bool()}, [3])
    root = {"observation": one, "action": one, "extra": one, "done": one.bool(), "agents": agents}
    after = {"observation": two, "reward": two, "done": two.bool(), "state": two, "agents": later}
    return TensorDict({**root, "next": TensorDict(after, [3])}, [3])


def names(tensordict):
    return set(tensordict.keys(include_nested=True, leaves_only=True))


def test_step_mdp_moves_next_to_the_root_and_keeps_the_rest():
    moved = step_mdp(step())
    assert names(moved) == {
        "observation",
        "extra",
        "done",
        "state",
        ("agents", "observation"),
        ("agents", "action"),
        ("agents", "extra"),
        ("agents", "reward"),
        ("agents", "done"),
    }
    assert (moved["observation"] == 2).all()
    assert (moved["agents", "observation"] == 2).all()
    assert (moved["extra"] == 1).all()


def test_nested_rewards_dones_and_actions_are_dropped_by_name():
    moved = step_mdp(
        step(),
        exclude_done=True,
        reward_keys=["reward", ("agents", "reward")],
        done_keys=["done", ("agents", "done")],
        action_keys=["action", ("agents", "action")],
    )
    assert names(moved) == {
        "observation",
        "extra",
        "state",
        ("agents", "observation"),
        ("agents", "extra"),
    }


def test_step_mdp_without_the_others_keeps_the_next_entries_only():
    assert names(step_mdp(step(), keep_other=False)) == {
        "observation",
        "done",
        "state",
        ("agents", "observation"),
        ("agents", "reward"),
        ("agents", "done"),
    }
    assert "action" in step_mdp(step(), keep_other=False, exclude_action=False)


@pytest.mark.parametrize(
    ("argument", "key"), [("exclude_reward", "reward"), ("exclude_action", "action")]
)
def test_step_mdp_keeps_keys_that_are_not_excluded(argument, key):
    assert key not in step_mdp(step())
    assert key in step_mdp(step(), **{f"exclude_{key}": False})


def test_all_done_flags_go_by_default():
    moved = step_mdp(trajectories([3]), exclude_done=True)
    assert not {"done", "terminated", "truncated"} & set(moved.keys())


def test_the_given_tensordict_is_written_to():
    out = TensorDict({"mine": torch.zeros(3)}, [3])
    assert step_mdp(step(), out) is out
    assert {"mine", "state"} <= set(out.keys())


def test_the_input_keeps_its_entries_and_shares_its_leaves():
    before = step()
    expected = names(before)
    assert step_mdp(before)["state"] is before["next", "state"]
    assert names(before) == expected


def test_steps_of_different_shapes_stay_a_lazy_stack():
    steps = [step(), step().set("wide", torch.ones(3, 7))]
    moved = step_mdp(LazyStackedTensorDict.lazy_stack(steps, 0))
    assert moved.batch_size == (2, 3)
    assert "wide" in moved[1]


def test_a_step_that_was_not_taken_is_refused():
    with pytest.raises(KeyError, match="Step the environment first"):
        step_mdp(TensorDict({"observation": torch.zeros(3)}, [3]))


def test_data_that_is_no_tensor_moves_as_it_is():
    before = trajectories([3])
    before["next", "text"] = NonTensorStack(*"abc")
    assert list(step_mdp(before)["text"]) == ["a", "b", "c"]
