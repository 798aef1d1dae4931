"""Devices: what is filled in, what is refused, and what moves."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_collect.devices import Devices, Moved, mover
from rl_envs import GymEnv

CPU = torch.device("cpu")


def test_what_is_not_said_is_where_the_parts_are():
    devices = Devices.of(CPU, nn.Linear(2, 2, device="meta"))
    assert (devices.env, devices.policy, devices.storing) == (CPU, torch.device("meta"), CPU)
    assert Devices.of(CPU, device="cpu", storing_device="meta").storing.type == "meta"


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(RuntimeError, match="no device 'cuda:99'"):
        Devices.of(CPU, storing_device="cuda:99")
    with pytest.raises(ValueError, match="make the environment with device='meta'"):
        Devices.of(CPU, env_device="meta")


def test_nothing_moves_that_is_there_already():
    value = torch.ones(2)
    assert mover(CPU)(value) is value
    batch = TensorDict({"a": value}, [2])
    assert mover(CPU)(batch) is batch
    assert mover(torch.device("meta"))(batch)["a"].device.type == "meta"


def test_a_policy_elsewhere_acts_on_a_copy():
    def policy(root):
        root["seen"] = root["seen"] + 1
        root["action"] = root["seen"] * 2

    root = TensorDict({"seen": torch.ones(3), "kept": torch.zeros(3)}, [3])
    kept = root["kept"]
    found = Moved(policy, lambda td: td.clone(), lambda leaf: leaf)(root)
    assert found["action"].tolist() == [4, 4, 4]
    assert found["seen"].tolist() == [2, 2, 2]
    assert found["kept"] is kept


@pytest.mark.gpu
def test_policy_and_batches_on_a_gpu():
    net = nn.Linear(4, 2, device="cuda")

    def act(observation):
        return nn.functional.one_hot(net(observation).argmax(-1), 2).bool()

    policy = TensorDictModule(act, ["observation"], ["action"])
    collector = Collector(
        GymEnv("CartPole-v1"),
        policy,
        frames_per_batch=30,
        policy_device="cuda",
        storing_device="cuda",
    )
    batch = collector.next()
    assert batch["observation"].is_cuda
    assert batch["collector", "traj_ids"].is_cuda
    assert (batch["action"] == act(batch["observation"])).all()
