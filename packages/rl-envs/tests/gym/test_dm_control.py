"""Environments of dm_control, which shimmy registers with Gymnasium."""

import os

import pytest
import torch

from rl_envs import GymEnv, check_env_specs
from rl_layout import check_layout

os.environ.setdefault("MUJOCO_GL", "disabled")
pytest.importorskip("shimmy", reason="needs the extra dm-control")
pytest.importorskip("dm_control", reason="needs the extra dm-control, and mujoco below 4")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["cartpole-balance", "cheetah-run"])
def test_a_task_obeys_the_contract(name):
    env = GymEnv(f"dm_control/{name}-v0")
    check_env_specs(env)
    batch = env.rollout(20)
    assert check_layout(batch).ok
    assert batch["position"].dtype == env.observation_spec["position"].dtype
    assert torch.equal(batch["position"][1:], batch["next", "position"][:-1])


def test_a_task_ends_by_its_time_limit():
    env = GymEnv("dm_control/cartpole-balance-v0")
    batch = env.rollout(1000)
    assert batch["next", "truncated"].flatten().nonzero().tolist() == [[999]]
    assert not batch["next", "terminated"].any()
