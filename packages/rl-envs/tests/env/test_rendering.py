from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rl_envs import (
    FrameRecorder,
    GymEnv,
    GymVectorEnv,
    ParallelEnv,
    SerialEnv,
    TransformedEnv,
    write_gif,
)
from rl_envs.testing import CountingEnv, check_conformance
from rl_transforms import StepCounter


class Lamp(gymnasium.Env):
    """Grows brighter by 10 a step, and is drawn without a library."""

    metadata: ClassVar = {"render_modes": ["rgb_array", "ansi"], "render_fps": 5}
    observation_space = spaces.Box(0, 255, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode, self.light = render_mode, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.light = int(self.np_random.integers(5))
        return np.full(2, self.light, np.float32), {}

    def step(self, action):
        self.light += 10
        return np.full(2, self.light, np.float32), 1.0, self.light >= 30, False, {}

    def render(self):
        return np.full((4, 5, 3), self.light, np.uint8)


@pytest.fixture
def name():
    gymnasium.register("Lamp-v0", Lamp, max_episode_steps=20)
    yield "Lamp-v0"
    del gymnasium.registry["Lamp-v0"]


def lamp(**kwargs):
    return GymEnv(Lamp("rgb_array"), **kwargs)


@pytest.mark.parametrize("fast", [True, False])
def test_pixels_show_what_is_drawn(fast):
    env = lamp(from_pixels=True, pixels_only=False)
    env.native_rows = fast
    batch = env.rollout(7, break_when_any_done=False)
    assert batch["pixels"].shape == (7, 4, 5, 3)
    for td in (batch, batch["next"]):
        assert torch.equal(td["pixels"][:, 0, 0, 0], td["observation"][:, 0].to(torch.uint8))


def test_pixels_alone_leave_out_the_rest(name):
    env = GymEnv(name, from_pixels=True)
    assert list(env.observation_spec.keys()) == ["pixels"]
    env.set_seed(3)
    light = env.rollout(2)["next", "pixels"][:, 0, 0, 0]
    plain = GymEnv(name)
    plain.set_seed(3)
    assert light.tolist() == plain.rollout(2)["next", "observation"][:, 0].tolist()
    assert light.tolist() != [0, 0]
    check_conformance(lambda: GymEnv(name, from_pixels=True))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_vectors_show_the_pixels_that_a_serial_env_does(name, kind, mode):
    batches = []
    for env in (
        GymVectorEnv(
            name,
            2,
            vectorization_mode=kind,
            autoreset_mode=mode,
            from_pixels=True,
            pixels_only=False,
        ),
        SerialEnv(2, lambda: lamp(from_pixels=True, pixels_only=False)),
    ):
        env.set_seed(5)
        torch.manual_seed(2)
        batches.append(env.rollout(9, break_when_any_done=False))
        env.close()
    assert (batches[0] == batches[1]).all()


def test_every_environment_can_be_looked_at(name):
    one = lamp()
    several = SerialEnv(2, lamp)
    around = TransformedEnv(lamp(), StepCounter())
    vector = GymVectorEnv(name, 2, render_mode="rgb_array")
    with ParallelEnv(2, lamp, mp_start_method="fork") as parallel:
        for env in (one, several, around, vector, parallel):
            root = env.reset()
            frame = env.render()
            assert frame.shape == (*env.batch_size, 4, 5, 3)
            light = frame[..., 0, 0, 0]
            assert torch.equal(light, root["observation"][..., 0].to(torch.uint8))


def test_a_rollout_can_be_recorded():
    recorder, env = FrameRecorder(), SerialEnv(2, lamp)
    batch = env.rollout(5, callback=recorder, break_when_any_done=False)
    assert recorder.frames.shape == (2, 5, 4, 5, 3)
    light = recorder.frames[..., 0, 0, 0]
    assert torch.equal(light, batch["next", "observation"][..., 0].to(torch.uint8))
    recorder.clear()
    with pytest.raises(RuntimeError, match="no step was recorded yet"):
        _ = recorder.frames


def test_frames_become_a_gif(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    frames = torch.zeros(3, 4, 5, 3, dtype=torch.uint8)
    frames[1], frames[2] = 100, 200
    write_gif(frames, tmp_path / "lamp.gif", fps=10)
    with image.open(tmp_path / "lamp.gif") as shown:
        assert (shown.n_frames, shown.size, shown.info["duration"]) == (3, (5, 4), 100)
        for t in range(3):
            shown.seek(t)
            assert shown.convert("RGB").getpixel((0, 0)) == (100 * t,) * 3


def test_write_gif_refuses_other_shapes(tmp_path):
    with pytest.raises(ValueError, match=r"\[T, H, W, 3\]: got torch.uint8 \(2, 3, 4, 5, 3\)"):
        write_gif(torch.zeros(2, 3, 4, 5, 3, dtype=torch.uint8), tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"got torch\.float32"):
        write_gif(torch.zeros(3, 4, 5, 3), tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"at most 50, which GIF can show: got 60"):
        write_gif(torch.zeros(3, 4, 5, 3, dtype=torch.uint8), tmp_path / "a.gif", fps=60)


def test_environments_without_frames_say_so(name):
    with pytest.raises(NotImplementedError, match="CountingEnv has no frames"):
        CountingEnv().render()
    with pytest.raises(ValueError, match="this environment has None"):
        GymEnv(Lamp()).render()
    with pytest.raises(ValueError, match="this environment has None"):
        GymEnv(Lamp(), from_pixels=True)
    with pytest.raises(ValueError, match="this environment has 'ansi'"):
        GymEnv(name, from_pixels=True, render_mode="ansi")
    with pytest.raises(ValueError, match="give the environment by its id"):
        GymVectorEnv("CartPole-v1", 2, vectorization_mode="vector_entry_point", from_pixels=True)


def test_a_name_that_is_taken_is_refused():
    class Taken(Lamp):
        observation_space = spaces.Dict(pixels=spaces.Discrete(2))

    with pytest.raises(ValueError, match="an observation named 'pixels' already"):
        GymEnv(Taken("rgb_array"), from_pixels=True, pixels_only=False)
