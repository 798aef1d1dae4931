from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import DTypeCastTransform

WIDE, NARROW = torch.float32, torch.float16


def test_every_leaf_of_the_dtype_is_cast_without_keys():
    batch = environments(3, 5, [4], [EndKind.TERMINATED])
    cast = DTypeCastTransform(WIDE, NARROW)(batch)
    assert cast["observation"].dtype == cast["next", "observation"].dtype == NARROW
    assert cast["next", "reward"].dtype == NARROW
    assert cast["action"] is batch["action"]
    assert batch["observation"].dtype == WIDE


def test_named_leaves_only_are_cast_and_can_be_renamed():
    batch = trajectories([3])
    cast = DTypeCastTransform(WIDE, NARROW, ["observation"], ["half"])(batch)
    assert cast["half"].dtype == cast["next", "half"].dtype == NARROW
    assert cast["next", "reward"].dtype == WIDE
    assert cast["observation"].dtype == WIDE


def test_inverse_casts_rows_back_for_a_buffer():
    cast, batch = DTypeCastTransform(WIDE, NARROW), trajectories([3])
    back = cast.inv(cast(batch))
    assert back["next", "observation"].dtype == WIDE
    assert torch.equal(back["observation"], batch["observation"])
    named = DTypeCastTransform(WIDE, NARROW, in_keys_inv=["observation"])
    assert named.inv(cast(batch))["observation"].dtype == WIDE
    assert named.inv(cast(batch))["next", "reward"].dtype == NARROW


def test_inputs_of_an_environment_are_cast_by_its_specs():
    cast = DTypeCastTransform(torch.float64, WIDE)
    force = Bounded(-1, 1, (3, 2), dtype=torch.float64)
    spec = Composite(action=force, other=Unbounded((3,)), shape=(3,))
    described = cast.transform_action_spec(spec)
    assert described["action"].dtype == WIDE
    assert spec["action"].dtype == torch.float64
    data = TensorDict({"action": torch.ones(3, 2), "other": torch.ones(3)}, [3])
    assert cast.inv(data)["action"].dtype == torch.float64
    assert cast.inv(data)["other"].dtype == WIDE
    with pytest.raises(KeyError, match=r"'action' is missing"):
        cast.inv(data.exclude("action"))


def test_specs_are_cast_with_their_leaves():
    cast = DTypeCastTransform(torch.float64, WIDE)
    spec = Composite(a={"x": Unbounded((3,), dtype=torch.float64)}, y=Unbounded((3,)), shape=(3,))
    described = cast.transform_observation_spec(spec)
    assert described["a", "x"].dtype == described["y"].dtype == WIDE
    named = DTypeCastTransform(torch.float64, WIDE, [("a", "x")], ["z"])
    assert named.transform_observation_spec(spec)["z"].dtype == WIDE


@pytest.mark.parametrize("in_keys", [None, ["observation"]])
def test_partial_reset_casts_raw_rows_and_leaves_cast_ones(in_keys):
    mask = torch.tensor([True, False, True])
    cast = DTypeCastTransform(WIDE, NARROW, in_keys)
    for dtype in (WIDE, NARROW):
        root = TensorDict({"observation": torch.ones(3, 7, dtype=dtype)}, [3])
        assert cast.reset(root, mask)["observation"].dtype == NARROW
    after = TensorDict({"observation": torch.ones(3, 7)}, [3])
    assert cast.step(root, after)["observation"].dtype == NARROW


def test_partial_reset_keeps_unmasked_rows_under_the_out_key():
    cast = DTypeCastTransform(WIDE, NARROW, ["a"], ["b"])
    root = TensorDict({"a": torch.ones(3), "b": torch.zeros(3, dtype=NARROW)}, [3])
    assert cast.reset(root, torch.tensor([True, False, True]))["b"].tolist() == [1, 0, 1]


def test_invalid_dtypes_are_refused_with_their_argument():
    with pytest.raises(TypeError, match=r"'action': expected a leaf of torch.float32.*int64"):
        DTypeCastTransform(WIDE, NARROW, ["action"])(trajectories([3]))
    with pytest.raises(TypeError, match=r"dtype_out: expected a torch.dtype"):
        DTypeCastTransform(WIDE, "half")
