from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import trajectories
from rl_specs import Binary, Composite, Unbounded
from rl_transforms import SelectTransform


def rows():
    batch = trajectories([3])
    batch["agents", "pos"] = torch.zeros(3, 2)
    batch["agents", "hidden"] = torch.zeros(3, 7)
    batch["next", "agents", "pos"] = torch.ones(3, 2)
    batch["next", "agents", "hidden"] = torch.ones(3, 7)
    return batch


def test_unselected_keys_are_dropped_on_both_sides_of_a_step():
    batch = rows()
    kept = SelectTransform(("agents", "pos"))(batch)
    assert "observation" not in kept
    assert "observation" not in kept["next"]
    assert list(kept["agents"].keys()) == ["pos"]
    assert list(kept["next", "agents"].keys()) == ["pos"]
    assert "observation" in batch


def test_markers_actions_rewards_and_flags_stay():
    kept = SelectTransform("observation")(rows())
    for key in (keys.IS_INIT, keys.TRAJ_IDS, keys.TRAJ_STEP, keys.NEXT_DONE, keys.NEXT_REWARD):
        assert key in kept.keys(True), key
    assert "action" in kept
    assert "agents" not in kept


def test_group_is_selected_whole():
    assert set(SelectTransform("agents")(rows())["agents"].keys()) == {"pos", "hidden"}


def test_rewards_and_flags_can_be_dropped():
    kept = SelectTransform("observation", keep_rewards=False, keep_dones=False)(rows())
    assert list(kept["next"].keys()) == ["observation"]


def test_resets_and_steps_are_selected_alike():
    select, step = SelectTransform("observation"), rows()
    assert "agents" not in select.reset(step.exclude("next"))
    assert "agents" not in select.step(step, step["next"])
    assert "reward" in select.step(step, step["next"])


def test_rewards_of_another_name_are_learned_from_their_spec():
    select = SelectTransform("observation")
    select.transform_reward_spec(Composite(gain=Unbounded((3, 1)), shape=(3,)))
    after = {"gain": torch.ones(3, 1), "observation": torch.ones(3), "x": torch.ones(3)}
    after = TensorDict(after, [3])
    assert set(select.step(after, after).keys()) == {"gain", "observation"}


def test_specs_keep_the_same_keys_as_data():
    select = SelectTransform(("agents", "pos"))
    group = {"pos": Unbounded((3, 2)), "x": Unbounded((3,))}
    spec = Composite(agents=group, y=Unbounded((3,)), shape=(3,))
    assert list(select.transform_observation_spec(spec).keys(True, True)) == [("agents", "pos")]
    done = Composite(done=Binary(shape=(3, 1)), shape=(3,))
    assert select.transform_done_spec(done) is done
    with pytest.raises(ValueError, match="needs a done flag"):
        SelectTransform("a", keep_dones=False).transform_done_spec(done)


def test_missing_selected_key_is_named():
    with pytest.raises(KeyError, match="'pixels' is missing"):
        SelectTransform("pixels")(rows())
    with pytest.raises(KeyError, match="'pixels' is missing"):
        SelectTransform("pixels").step(rows(), rows()["next"])
    with pytest.raises(TypeError, match="a key must be"):
        SelectTransform(["a", "b"])


@pytest.mark.parametrize("key", [(), 3, ("a", 1)])
def test_invalid_key_is_refused_by_keeps(key):
    with pytest.raises(TypeError, match="a key must be a string or a non-empty tuple"):
        SelectTransform("a").keeps(key)
