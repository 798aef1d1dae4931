from __future__ import annotations

import torch

from rl_layout.testing import trajectories
from rl_specs import Composite, Unbounded
from rl_transforms import DeviceCastTransform, DoubleToFloat


def test_tensordict_moves_out_and_back():
    change = DeviceCastTransform("meta", "cpu")
    batch = trajectories([3])
    assert change(batch)["next", "observation"].device.type == "meta"
    assert change.reset(batch)["observation"].device.type == "meta"
    assert change.step(batch, batch["next"])["reward"].device.type == "meta"
    assert change.inv(batch) is not None
    assert DeviceCastTransform("meta").inv(batch) is batch
    assert batch["observation"].device.type == "cpu"


def test_specs_are_on_the_device():
    spec = Composite(observation=Unbounded((3,)), device="cpu")
    change = DeviceCastTransform("meta")
    for described in (
        change.transform_observation_spec(spec),
        change.transform_reward_spec(spec),
        change.transform_done_spec(spec),
        change.transform_action_spec(spec),
        change.transform_state_spec(spec),
    ):
        assert described["observation"].device.type == "meta"
    assert "meta" in repr(change)


def test_doubles_become_floats_and_back():
    batch = trajectories([3])
    batch["observation"] = batch["observation"].double()
    cast = DoubleToFloat(["observation"], in_keys_inv=["observation"])
    assert cast(batch)["observation"].dtype == torch.float32
    assert cast.inv(batch.float())["observation"].dtype == torch.float64
