"""What Atari needs beyond classic control: large frames, lives, and its own random numbers."""

import gymnasium
import pytest
import torch

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import check_conformance
from rl_transforms import Compose, GrayScale, PermuteTransform, Resize, ToTensorImage

ale = pytest.importorskip("ale_py", reason="pip install rl-envs[atari]")
gymnasium.register_envs(ale)
ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


def test_every_promise_is_kept():
    check_conformance(lambda: GymEnv("ale_py:ALE/Pong-v5", obs_type="ram"), num_steps=9)


def test_frames_and_choices_are_those_of_the_game():
    env = GymEnv("ALE/Pong-v5")
    assert (env.observation_spec["observation"].shape, env.action_spec.n) == ((210, 160, 3), 6)
    env.set_seed(0)
    batch = env.rollout(40)
    assert batch["observation"].dtype == torch.uint8
    moved = (batch["observation"] != batch["next", "observation"]).flatten(1).any(1)
    assert moved.any()
    small = GymEnv("ALE/Pong-v5", obs_type="grayscale", full_action_space=True)
    assert small.rollout(2)["observation"].shape == (2, 210, 160)
    assert small.action_spec.n == 18
    assert GymEnv("ALE/Pong-v5", obs_type="ram").rollout(2)["observation"].shape == (2, 128)


def test_lives_are_shown_on_request():
    env = GymEnv("ALE/Breakout-v5", info_keys=["lives"])
    env.set_seed(0)
    fire = torch.tensor([False, True, False, False])
    batch = env.rollout(300, lambda root: root.set("action", fire))
    lives = batch["next", "lives"]
    assert lives.dtype == torch.int64
    assert batch["lives"][0] == 5
    assert lives[0] == 5
    assert (lives.diff() <= 0).all()
    assert lives[-1] < 5  # the paddle never moves
    assert torch.equal(batch["lives"][1:], lives[:-1])


def test_pixels_are_the_frames():
    env = GymEnv("ALE/Pong-v5", from_pixels=True, pixels_only=False)
    batch = env.rollout(3)
    assert torch.equal(batch["pixels"], batch["observation"])
    assert torch.equal(env.render(), batch["next", "pixels"][-1])


def test_frames_pass_image_transforms():
    images = Compose(
        ToTensorImage(in_keys=["observation"]),
        GrayScale(in_keys=["observation"]),
        Resize(84, in_keys=["observation"]),
    )
    batch = TransformedEnv(GymEnv("ALE/Pong-v5"), images).rollout(3)
    assert batch["next", "observation"].shape == (3, 1, 84, 84)


def test_vectors_and_processes_play_what_a_serial_env_does():
    def make():
        return GymEnv("ALE/Pong-v5", max_episode_steps=6)

    batches = []
    with ParallelEnv(2, make, mp_start_method="fork") as parallel:
        vector = GymVectorEnv("ALE/Pong-v5", 2, max_episode_steps=6)
        for env in (SerialEnv(2, make), parallel, vector):
            env.set_seed(5)
            torch.manual_seed(2)
            batches.append(env.rollout(10, break_when_any_done=False))
    assert batches[0]["next", "truncated"].sum() == 2
    assert (batches[0] == batches[1]).all()
    assert (batches[0] == batches[2]).all()


def test_the_state_cannot_be_saved_and_says_so():
    with pytest.raises(NotImplementedError, match="cannot save the state of AtariEnv"):
        GymEnv("ALE/Pong-v5").state_dict()


def test_frames_of_the_wrapper_of_gymnasium_stay_bytes():
    pytest.importorskip("cv2", reason="pip install rl-envs[atari]")
    game = gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1)
    batch = GymEnv(gymnasium.wrappers.AtariPreprocessing(game)).rollout(3)
    assert batch["observation"].dtype == torch.uint8
    assert batch["observation"].shape == (3, 84, 84)


def test_frames_stay_bytes_through_grey_and_resize():
    keys = ["observation"]
    images = Compose(
        PermuteTransform((-1, -3, -2), keys), GrayScale(keys), Resize(84, in_keys=keys)
    )
    batch = TransformedEnv(GymEnv("ale_py:ALE/Pong-v5"), images).rollout(3)
    assert batch["next", "observation"].dtype == torch.uint8
    assert batch["next", "observation"].shape == (3, 1, 84, 84)
    assert batch["observation"].float().std() > 1
