import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv
from rl_record import JSONLLogger, PixelRenderTransform, VideoRecorder

ACTION = torch.tensor([True, False])


class Drawn(EpisodeStepEnv):
    """Renders its episode and step as bytes, into the same memory each time."""

    def __init__(self, batch_size=(), ends=((3, "terminated"),)):
        super().__init__(list(ends), batch_size)
        self.memory = torch.zeros(*self.batch_size, 4, 5, 3, dtype=torch.uint8)
        self.num_drawn = 0

    def render(self, bright=0):
        self.num_drawn += 1
        byte = (10 * self._episode + self._count + bright).to(torch.uint8)
        self.memory[:] = byte.reshape(*self.batch_size, 1, 1, 1)
        return self.memory


def bytes_of(frames):
    return frames.flatten(-3)[..., 0].tolist()


def played(env, steps=5):
    return env.rollout(
        steps,
        lambda root: root.set("action", ACTION.expand(*env.batch_size, 2)),
        break_when_any_done=False,
    )


def test_frames_of_resets_and_steps_by_hand():
    batch = played(TransformedEnv(Drawn(), PixelRenderTransform()))
    first = bytes_of(batch["pixels"])[0]
    assert first % 10 == 0
    assert bytes_of(batch["pixels"]) == [first, first + 1, first + 2, first + 10, first + 11]
    assert bytes_of(batch["next", "pixels"]) == [first + n for n in (1, 2, 3, 11, 12)]


def test_the_spec_has_the_frame_and_another_key():
    env = TransformedEnv(Drawn((2,)), PixelRenderTransform(["view"]))
    spec = env.observation_spec["view"]
    assert (spec.shape, spec.dtype) == ((2, 4, 5, 3), torch.uint8)
    batch = env.rollout(3)
    assert batch["view"].shape == (2, 3, 4, 5, 3)
    assert spec.is_in(batch["view"][:, 0])


def test_steps_between_repeat_the_frame_before():
    env = Drawn(ends=[(6, "terminated")])
    transform = PixelRenderTransform(skip=3)
    around = TransformedEnv(env, transform)
    env.num_drawn = 0
    batch = around.rollout(6)
    first = bytes_of(batch["pixels"])[0]
    assert bytes_of(batch["next", "pixels"]) == [first + n for n in (0, 0, 3, 3, 3, 6)]
    assert env.num_drawn == 3


def test_options_and_preproc_change_the_frame():
    transform = PixelRenderTransform(preproc=lambda frame: frame.float() / 2, bright=4)
    batch = TransformedEnv(Drawn(), transform).rollout(2)
    assert batch["pixels"].dtype == torch.float32
    assert bytes_of(batch["next", "pixels"])[0] - bytes_of(batch["pixels"])[0] == 0.5


@pytest.mark.parametrize("skip", [1, 4])
def test_rows_that_are_not_reset_keep_their_frame(skip):
    env = TransformedEnv(
        Drawn((2,), [(2, "terminated"), (5, "terminated")]), PixelRenderTransform(skip=skip)
    )
    batch = played(env, 4)
    for row in range(2):
        seen, after = batch["pixels"][row], batch["next", "pixels"][row]
        over = batch["next", "done"][row, :-1, 0]
        assert torch.equal(seen[1:][~over], after[:-1][~over])


class Painted(CartPoleEnv):
    """CartPole without the library that draws it."""

    def render(self):
        return np.full((400, 600, 3), self.render_mode == "rgb_array", np.uint8)


def test_frames_of_gymnasium_and_in_a_worker():
    def make():
        env = GymEnv(Painted(render_mode="rgb_array"))
        return TransformedEnv(env, PixelRenderTransform(preproc=lambda frame: frame[::100, ::100]))

    alone = make().rollout(3)
    assert alone["pixels"].shape == (3, 4, 6, 3)
    assert SerialEnv(2, make).rollout(3)["next", "pixels"].shape == (2, 3, 4, 6, 3)


def test_a_recorder_sees_the_frames(tmp_path):
    with JSONLLogger("run", tmp_path) as logger:
        recorder = VideoRecorder(logger)
        TransformedEnv(Drawn(), PixelRenderTransform(), recorder).rollout(2)
    assert len(recorder.frames) == 3


def test_one_picture_of_all_rows_is_given_to_each():
    env = Drawn((2,))
    env.render = lambda: torch.zeros(4, 5, 3, dtype=torch.uint8)
    assert TransformedEnv(env, PixelRenderTransform()).rollout(2)["pixels"].shape == (2, 2, 4, 5, 3)


def test_a_state_can_be_passed_to_the_method():
    env = Drawn()
    env.draw = lambda seen: np.zeros((2, 3, int(seen["observation"].numel())), np.uint8)
    transform = PixelRenderTransform(render_method="draw", pass_tensordict=True)
    found = TransformedEnv(env, transform).rollout(2)
    assert found["pixels"].shape == (2, 2, 3, found["observation"][0].numel())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: TransformedEnv(EpisodeStepEnv(), PixelRenderTransform()),
            NotImplementedError,
            "has no frames",
        ),
        (
            lambda: TransformedEnv(GymEnv("CartPole-v1"), PixelRenderTransform()),
            ValueError,
            "render_mode='rgb_array'",
        ),
        (
            lambda: TransformedEnv(Drawn(), PixelRenderTransform(render_method="draw")),
            ValueError,
            "has no method 'draw'",
        ),
        (lambda: PixelRenderTransform(["a", "b"]), ValueError, "expected one key"),
        (lambda: PixelRenderTransform(as_non_tensor=True), ValueError, "written as tensors"),
        (lambda: PixelRenderTransform(skip=0), ValueError, "skip: expected at least 1"),
        (lambda: PixelRenderTransform(preproc=3), TypeError, "preproc: expected"),
        (
            lambda: TransformedEnv(Drawn(), PixelRenderTransform(preproc=lambda _: "frame")),
            ValueError,
            "preproc returned no frame",
        ),
        (
            lambda: TransformedEnv(
                GymVectorEnv(
                    "CartPole-v1",
                    num_envs=2,
                    autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
                ),
                PixelRenderTransform(),
            ),
            ValueError,
            "resets rows inside a step",
        ),
    ],
    ids=["frames", "mode", "method", "keys", "objects", "skip", "preproc", "text", "autoreset"],
)
def test_what_cannot_be_rendered_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_reset_of_some_rows_writes_theirs_alone():
    env, transform = Drawn((2,)), PixelRenderTransform()
    transform.attach(env)
    root = env.reset()
    root["pixels"] = torch.full((2, 4, 5, 3), 99, dtype=torch.uint8)
    found = transform.reset(root, torch.tensor([True, False]))
    assert bytes_of(found["pixels"]) == [bytes_of(env.render())[0], 99]
    assert bytes_of(root["pixels"]) == [99, 99]
