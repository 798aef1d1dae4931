from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Composite, Unbounded
from rl_transforms import RenameTransform


def test_entry_moves_at_the_root_and_under_next():
    batch = environments(3, 5, [4], [EndKind.TERMINATED])
    renamed = RenameTransform(["observation", "reward"], [("a", "view"), "gain"])(batch)
    assert renamed["a", "view"] is batch["observation"]
    assert renamed["next", "a", "view"] is batch["next", "observation"]
    assert renamed["next", "gain"] is batch["next", "reward"]
    assert "observation" not in renamed
    assert "observation" in batch


def test_create_copy_keeps_the_old_name():
    batch = trajectories([3])
    renamed = RenameTransform(["observation"], ["view"], create_copy=True)(batch)
    assert renamed["view"] is renamed["observation"]


def test_two_names_are_swapped():
    batch = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
    swap = RenameTransform(["a", "b"], ["b", "a"])
    assert swap(batch)["a"] is batch["b"]
    assert swap(batch)["b"] is batch["a"]
    spec = Composite(a=Unbounded((3, 1)), b=Unbounded((3, 2)), shape=(3,))
    spec = swap.transform_observation_spec(spec)
    assert spec["a"].shape == (3, 2)


def test_group_is_renamed_whole():
    batch = TensorDict({"a": {"x": torch.zeros(3)}, "next": {"a": {"x": torch.ones(3)}}}, [3])
    renamed = RenameTransform(["a"], ["b"])(batch)
    assert renamed["next", "b", "x"].sum() == 3
    assert set(renamed.keys()) == {"b", "next"}


def test_partial_reset_keeps_carried_values_under_the_new_name():
    mask = torch.tensor([True, False, True])
    rename = RenameTransform(["a", "g"], ["b", "h"])
    root = TensorDict({"a": torch.ones(3, 1), "g": {"x": torch.ones(3)}}, [3])
    carried = root.clone().update({"b": torch.full((3, 1), 5.0), "h": {"x": torch.full((3,), 7.0)}})
    assert rename.reset(root)["b"] is root["a"]
    kept = rename.reset(carried, mask)
    assert kept["b"].flatten().tolist() == [1, 5, 1]
    assert kept["h", "x"].tolist() == [1, 7, 1]
    assert set(kept.keys()) == {"b", "h"}


def test_step_renames_its_result():
    step = trajectories([3])
    after = RenameTransform(["observation"], ["view"]).step(step, step["next"])
    assert after["view"] is step["next", "observation"]


def test_inverse_gives_inner_names():
    data = TensorDict({"move": torch.zeros(3, 2)}, [3])
    rename = RenameTransform([], [], ["action"], ["move"])
    assert list(rename.inv(data).keys()) == ["action"]
    spec = Composite(action=Unbounded((3, 2)), shape=(3,))
    assert list(rename.transform_action_spec(spec).keys()) == ["move"]
    assert list(rename.transform_state_spec(Composite(shape=(3,))).keys()) == []


def test_existing_missing_and_duplicate_names_are_refused():
    batch = trajectories([3])
    with pytest.raises(ValueError, match="'action' is there already"):
        RenameTransform(["observation"], ["action"])(batch)
    with pytest.raises(KeyError, match="'pixels' is missing"):
        RenameTransform(["pixels"], ["view"])(batch)
    with pytest.raises(KeyError, match="'pixels' is missing"):
        RenameTransform(["pixels"], ["view"]).step(batch, batch["next"])
    with pytest.raises(ValueError, match="comes up twice"):
        RenameTransform(["a", "b"], ["c", ("c",)])
    spec = Composite(a=Unbounded((3,)), b=Unbounded((3,)), shape=(3,))
    with pytest.raises(ValueError, match="'b' is there already"):
        RenameTransform(["a"], ["b"]).transform_observation_spec(spec)
