import threading

import numpy as np
import pytest
import torch

from rl_envs import GymEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv
from rl_record import JSONLLogger, Logger, Video, VideoRecorder, read_run
from rl_specs import Bounded, Composite, Unbounded

ACTION = torch.tensor([True, False])


class Pictures(EpisodeStepEnv):
    """Shows pictures whose bytes are the episode and the step."""

    def __init__(self, batch_size=(), *, first=False):
        super().__init__([(3, "terminated")], batch_size)
        size = (3, 4, 5) if first else (4, 5, 3)
        self.size = (*self.batch_size, *size)
        pixels = Bounded(0, 255, self.size, dtype=torch.uint8)
        self.observation_spec = Composite(
            observation=Unbounded((*self.batch_size, 2)), pixels=pixels, shape=self.batch_size
        )

    def _show(self):
        shown = super()._show()
        byte = (10 * self._episode + self._count).to(torch.uint8)
        shown["pixels"] = byte.view(*self.batch_size, 1, 1, 1).expand(self.size).clone()
        return shown


@pytest.fixture
def logger(tmp_path):
    with JSONLLogger("run", tmp_path) as made:
        yield made


def bytes_of(recorder):
    assert all(frame.shape == (3, 4, 5) for frame in recorder.frames)
    return [int(frame[0, 0, 0]) for frame in recorder.frames]


@pytest.mark.parametrize("first", [True, False], ids=["channels first", "channels last"])
def test_resets_and_steps_are_recorded_in_their_order(logger, first):
    recorder = VideoRecorder(logger)
    env = TransformedEnv(Pictures(first=first), recorder)
    batch = env.rollout(4, lambda root: root.set("action", ACTION), break_when_any_done=False)
    assert bytes_of(recorder) == [0, 1, 2, 3, 10, 11]
    shown = batch["pixels"].flatten(1)[:, 0].tolist(), batch["next", "pixels"].flatten(1)[:, 0]
    assert (shown[0], shown[1].tolist()) == ([0, 1, 2, 10], [1, 2, 3, 11])


def test_one_row_of_a_vector_is_recorded(logger):
    recorder = VideoRecorder(logger, row=1)
    TransformedEnv(Pictures((2,)), recorder).rollout(2)
    assert bytes_of(recorder) == [10, 11, 12]


def test_frames_are_skipped_and_the_last_ones_kept(logger):
    recorder = VideoRecorder(logger, skip=2, max_frames=np.int64(2))
    TransformedEnv(Pictures(), recorder).rollout(6, break_when_any_done=False)
    assert bytes_of(recorder) == [10, 12]  # of 0, 1, 2, 3, 10, 11, 12, 13


def test_rendered_frames_are_kept_out_of_the_data(logger):
    env = EpisodeStepEnv()
    frame = torch.zeros(4, 5, 3, dtype=torch.uint8)
    recorder = VideoRecorder(logger, render=lambda: frame)
    batch = TransformedEnv(env, recorder).rollout(2)
    assert "pixels" not in batch
    assert len(recorder.frames) == 3


def test_dump_hands_over_the_frames_that_it_kept():
    class Halted:
        def __init__(self):
            self.may_write, self.videos = threading.Event(), []

        def write(self, events):
            self.may_write.wait(30)
            self.videos += [event for event in events if isinstance(event, Video)]

        def close(self):
            pass

    with Logger("run", sink := Halted()) as logger:
        recorder = VideoRecorder(logger)
        TransformedEnv(Pictures(), recorder).rollout(2)
        kept = list(recorder.frames)
        logger.log_scalar("first", 1)  # the thread waits in it
        recorder.dump(step=7)
        kept[1].fill_(77)  # the same memory
        sink.may_write.set()
    (video,) = sink.videos
    assert video.frames.shape == (3, 3, 4, 5)
    assert video.frames[:, 0, 0, 0].tolist() == [0, 77, 2]


def test_dump_logs_a_file_and_forgets(logger, tmp_path):
    recorder = VideoRecorder(logger, "eval/play", fps=10)
    TransformedEnv(Pictures(), recorder).rollout(2)
    assert recorder.dump(step=7) == 3
    assert recorder.dump(step=8) == 0
    logger.flush()
    (video,) = read_run(tmp_path / "run").videos
    assert (video["name"], video["step"], video["fps"]) == ("eval/play", 7, 10)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda log: VideoRecorder(log, skip=0), ValueError, "skip: expected at least 1"),
        (lambda log: VideoRecorder(log, in_keys=["a", "b"]), ValueError, "expected one key"),
        (lambda _: VideoRecorder("run"), TypeError, "logger: expected a logger"),
        (lambda log: VideoRecorder(log, in_keys=["view"]), KeyError, "'view' is not there"),
        (lambda log: VideoRecorder(log, in_keys=["observation"]), ValueError, "frames uint8"),
        (lambda log: VideoRecorder(log, row=1), IndexError, "row 1 is not there"),
        (
            lambda log: VideoRecorder(log, render=GymEnv("CartPole-v1").render),
            ValueError,
            "pixels need render_mode='rgb_array': this environment has None",
        ),
    ],
)
def test_wrong_recordings_are_refused(logger, make, error, message):
    with pytest.raises(error, match=message):
        TransformedEnv(Pictures(), make(logger)).rollout(2)
