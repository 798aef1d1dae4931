import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_datasets.video_file import VideoFile, VideoFiles

av = pytest.importorskip("av", reason="the video extra is not installed")
COUNT, FPS = 23, 10


def write(path, frames, *, fps=FPS, group=5):
    """A video without loss, with frames that are stored in another order than shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt, stream.time_base = "rgb24", Fraction(1, fps)
        stream.options = {"crf": "0", "bf": "2", "g": str(group), "keyint_min": str(group)}
        for number, rows in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(rows, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def frames_of(count=COUNT, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 24, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    frames = frames_of()
    return write(tmp_path_factory.mktemp("video") / "one.mp4", frames), frames


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(st.sets(st.integers(0, COUNT - 1), min_size=1), max_size=6))
def test_any_frames_in_any_order_are_those_that_were_encoded(made, calls):
    path, frames = made
    file = VideoFile(path)
    for places in calls:
        wanted = np.sort(list(places))
        assert np.array_equal(file.read(wanted), frames[wanted])
    file.close()


def test_frames_are_found_by_the_nearest_time(made):
    path, frames = made
    files = VideoFiles()
    times = np.array([0.51, 0.0, 2.24, 0.49, 0.51, -0.04])
    assert np.array_equal(files.frames(path, times, 0.05), frames[[5, 0, 22, 5, 5, 0]])
    with pytest.raises(ValueError, match=r"one\.mp4 has no frame at 2\.3000 s, but 23 from 0"):
        files.frames(path, np.array([0.0, 2.3]), 0.05)
    assert np.array_equal(VideoFile(path).places(np.array([0.06, 0.14]), 0.05), [1, 1])


def test_a_video_of_one_frame_has_it(tmp_path):
    frames = frames_of(1)
    path = write(tmp_path / "one.mp4", frames)
    assert np.array_equal(VideoFiles().frames(path, np.array([0.04, 0.0]), 0.05), frames[[0, 0]])


def test_few_files_stay_open_and_none_goes_to_another_process(tmp_path):
    files = VideoFiles(limit=2)
    paths = [write(tmp_path / f"{n}.mp4", frames_of(6, n)) for n in range(4)]
    for turn in range(2):
        for number, path in enumerate(paths):
            found = files.frames(path, np.array([0.1 * turn]), 0.05)
            assert np.array_equal(found[0], frames_of(6, number)[turn])
            assert len(files) <= 2
    again = pickle.loads(pickle.dumps(files))
    assert (len(again), again.limit) == (0, 2)
    assert len(again.frames(paths[0], np.zeros(3), 0.05)) == 3


def test_damaged_files_are_refused(tmp_path, made):
    whole = made[0].read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"cut\.mp4 is damaged.* before byte {len(whole) // 2}"):
        VideoFile(cut).read(np.arange(COUNT))
    with pytest.raises(FileNotFoundError, match=r"no video at .*nowhere\.mp4"):
        VideoFile(tmp_path / "nowhere.mp4")
