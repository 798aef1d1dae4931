"""What a physics engine needs beyond classic control: double precision, and info at every step."""

import pytest
import torch

from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_envs.testing import check_conformance
from rl_transforms import DoubleToFloat

pytest.importorskip("mujoco", reason="pip install rl-envs[mujoco]")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes a log of its warnings to the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "InvertedPendulum-v5"])
def test_every_promise_is_kept(name):
    check_conformance(lambda: GymEnv(name))


def test_observations_keep_their_precision():
    env = GymEnv("HalfCheetah-v5")
    env.set_seed(3)
    batch = env.rollout(7)
    assert batch["observation"].shape == (7, 17)
    assert batch["observation"].dtype == torch.float64
    assert (env.action_spec.shape, env.action_spec.dtype) == ((6,), torch.float32)
    assert env.action_spec.is_in(batch["action"])
    single = TransformedEnv(env, DoubleToFloat(["observation"])).rollout(3)
    assert single["next", "observation"].dtype == torch.float32


def test_info_entries_missing_at_a_reset_are_zero():
    env = GymEnv("HalfCheetah-v5", info_keys=["x_position", "x_velocity"])
    batch = env.rollout(5)
    assert batch["x_position"].dtype == torch.float64
    assert torch.equal(batch["x_position"][1:], batch["next", "x_position"][:-1])
    assert batch["x_velocity"][0] == 0  # the info of a reset has only the position
    moved = batch["next", "x_position"] - batch["x_position"]
    # 0.05 s a step
    assert torch.allclose(batch["next", "x_velocity"], moved / 0.05, rtol=1e-9, atol=1e-12)


def test_a_vector_plays_what_a_serial_env_does():
    batches = []
    for env in (
        GymVectorEnv("InvertedPendulum-v5", 3, max_episode_steps=9),
        SerialEnv(3, lambda: GymEnv("InvertedPendulum-v5", max_episode_steps=9)),
    ):
        env.set_seed(5)
        torch.manual_seed(2)
        batches.append(env.rollout(20, break_when_any_done=False))
        env.close()
    assert batches[0]["next", "done"].sum() >= 6
    assert (batches[0] == batches[1]).all()


def test_the_state_cannot_be_saved_and_says_so():
    with pytest.raises(NotImplementedError, match="cannot save the state of HalfCheetahEnv"):
        GymEnv("HalfCheetah-v5").state_dict()
