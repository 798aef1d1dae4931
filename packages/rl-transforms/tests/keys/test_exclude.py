from __future__ import annotations

import pytest
import torch

from rl_layout.testing import trajectories
from rl_specs import Composite, Unbounded
from rl_transforms import ExcludeTransform


def test_excluded_key_is_dropped_on_both_sides_of_a_step():
    batch = trajectories([3])
    left = ExcludeTransform("observation", ("collector", "traj_step"), "unknown")(batch)
    assert "observation" not in left
    assert "observation" not in left["next"]
    assert list(left["collector"].keys()) == ["traj_ids"]
    assert "observation" in batch


def test_resets_and_steps_drop_excluded_keys():
    step = trajectories([3])
    exclude = ExcludeTransform("observation")
    assert "observation" not in exclude.reset(step)
    assert "observation" not in exclude.step(step, step["next"])
    assert exclude.inv(step) is step


def test_inverse_drops_from_data_going_in():
    batch = trajectories([3])
    exclude = ExcludeTransform("observation", inverse=True)
    assert exclude(batch) is batch
    assert exclude.reset(batch)["observation"] is batch["observation"]
    assert "observation" not in exclude.inv(batch)
    assert exclude.side == "write"


def test_specs_drop_excluded_keys_or_refuse():
    spec = Composite(a={"b": Unbounded((3,))}, c=Unbounded((3,)), shape=(3,))
    exclude = ExcludeTransform(("a", "b"))
    assert list(exclude.transform_observation_spec(spec).keys()) == ["c"]
    assert len(spec.keys()) == 2
    with pytest.raises(KeyError, match="there is no observation 'x'"):
        ExcludeTransform("x").transform_observation_spec(spec)
    with pytest.raises(ValueError, match="needs its done flag 'c'"):
        ExcludeTransform("c").transform_done_spec(spec)
    with pytest.raises(ValueError, match="needs its reward 'c'"):
        ExcludeTransform("c").transform_reward_spec(spec)
    assert exclude.transform_done_spec(Composite(shape=(3,))).shape == torch.Size([3])
