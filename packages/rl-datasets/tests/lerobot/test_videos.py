import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rl_datasets import LeRobotExperienceReplay, StreamOptions
from rl_layout import check_layout

pytest.importorskip("av", reason="the video extra is not installed")
LENGTHS, FPS, NAME = [4, 3, 6], 10, "observation.images.side"
KEY = ("observation", "images", "side")
COUNT = sum(LENGTHS)
LASTS = np.cumsum(LENGTHS) - 1


def sibling(name):
    """A module of tests, by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


video = sibling("test_video_file")


def write(folder, version="v3.0"):
    """Episodes with a video: in v3 of the first two in one file, in v2.1 a file for each."""
    frames = video.frames_of(COUNT)
    rows = {
        "observation.state": np.arange(COUNT, dtype=np.float32),
        "action": np.arange(COUNT, dtype=np.float32) + 100,
        "timestamp": np.concatenate([np.arange(n) / FPS for n in LENGTHS]).astype(np.float32),
        "frame_index": np.concatenate([np.arange(n) for n in LENGTHS]),
        "episode_index": np.repeat(np.arange(3), LENGTHS),
    }
    features = {name: {"dtype": str(one.dtype), "shape": [1]} for name, one in rows.items()}
    features[NAME] = {"dtype": "video", "shape": [16, 24, 3]}
    v3 = version == "v3.0"
    template = (
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if v3
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    )
    info = {"codebase_version": version, "fps": FPS, "total_frames": COUNT, "features": features}
    episodes = {
        "episode_index": [0, 1, 2],
        "length": LENGTHS,
        f"videos/{NAME}/chunk_index": [0, 0, 0],
        f"videos/{NAME}/file_index": [0, 0, 1],
        f"videos/{NAME}/from_timestamp": [0.0, 0.4, 0.0],
    }
    (folder / "meta" / "episodes").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "meta" / "info.json").write_text(json.dumps({**info, "video_path": template}))
    pq.write_table(pa.table(rows), folder / "data" / "file-000.parquet")
    if v3:
        pq.write_table(pa.table(episodes), folder / "meta" / "episodes" / "file-000.parquet")
        files, bounds = [f"{NAME}/chunk-000/file-00{n}.mp4" for n in (0, 1)], [0, 7, 13]
    else:
        lines = [json.dumps({"episode_index": n, "length": one}) for n, one in enumerate(LENGTHS)]
        (folder / "meta" / "episodes.jsonl").write_text("\n".join(lines))
        files = [f"chunk-000/{NAME}/episode_00000{n}.mp4" for n in range(3)]
        bounds = [0, 4, 7, 13]
    for place, name in enumerate(files):
        part = frames[bounds[place] : bounds[place + 1]]
        video.write(folder / "videos" / name, part, fps=FPS, group=3)
    return frames


def opened(tmp_path, **options):
    places = {"path": tmp_path / "files", "root": tmp_path / "r"}
    return LeRobotExperienceReplay("me/some", **{**places, "verbose": False, **options})


def assert_frames(rows, frames):
    """Frames are those of the rows, which are told by their state."""
    at = rows["observation", "state"].reshape(-1).long().numpy()
    assert np.array_equal(rows[KEY], frames[at])
    missing = rows["collector", "next_missing"].numpy()
    assert np.array_equal(missing, np.isin(at, LASTS))
    assert np.array_equal(rows["next", *KEY][~missing], frames[at[~missing] + 1])
    assert not rows["next", *KEY][missing].any()


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_samples_have_the_frames_of_their_rows(tmp_path, version):
    frames = write(tmp_path / "files", version)
    data = opened(tmp_path, batch_size=64)
    assert KEY not in data.storage[:].keys(True, True)  # they stay encoded
    for _ in range(3):
        assert_frames(data.sample(), frames)
    assert_frames(data[:], frames)
    assert data.report.left_out[NAME] == "its frames stay in the videos"


def test_slices_have_frames_and_transforms_see_them(tmp_path):
    frames = write(tmp_path / "files")
    dark = opened(
        tmp_path, batch_size=9, slice_len=3, transform=lambda rows: rows.set(KEY, rows[KEY] // 2)
    )
    sample = dark.sample()
    at = sample["observation", "state"].reshape(-1).long().numpy()
    assert np.array_equal(sample[KEY], frames[at] // 2)


def test_videos_are_decoded_once_where_asked(tmp_path):
    frames = write(tmp_path / "files")
    data = opened(tmp_path, batch_size=64, decode_video="once")
    rows = data[:]
    assert np.array_equal(rows[KEY], frames)
    inside = np.setdiff1d(np.arange(COUNT), LASTS)
    assert np.array_equal(rows["next", *KEY][inside], frames[inside + 1])
    assert not check_layout(rows).findings
    assert data.report.lossy == {"observation/images/side": "its frames are those of a video"}


def test_a_stream_has_frames_too(tmp_path):
    frames = write(tmp_path / "files")
    data = opened(tmp_path, batch_size=8, streaming=StreamOptions(ring_rows=32, epochs=2))
    for sample in data:
        assert_frames(sample, frames)
    data.close()


def test_without_videos_rows_are_the_same(tmp_path):
    write(tmp_path / "files")
    rows = opened(tmp_path, decode_video=False)[:]
    assert KEY not in rows.keys(True, True)
    # the folder of the first conversion is known
    again = LeRobotExperienceReplay("me/some", root=tmp_path / "r", download=False)
    assert torch.equal(again[:]["action"], rows["action"])
    assert KEY in again[:].keys(True, True)


def test_arguments_and_videos_that_are_not_there_are_refused(tmp_path, monkeypatch):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match="decode_video"):
        opened(tmp_path, decode_video="twice")
    with pytest.raises(ValueError, match="leave split_trajs out"):
        opened(tmp_path, split_trajs=True)
    data = opened(tmp_path, batch_size=64)
    next((tmp_path / "files").rglob("file-001.mp4")).unlink()
    with pytest.raises(FileNotFoundError, match=r"no video at .*file-001\.mp4"):
        data.sample()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"rl-datasets\[video\].*decode_video=False"):
        opened(tmp_path)
    (tmp_path / "files").rename(tmp_path / "elsewhere")
    with pytest.raises(ImportError):
        LeRobotExperienceReplay("me/some", root=tmp_path / "r", download=False)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="which is gone: give its new place with path="):
        LeRobotExperienceReplay("me/some", root=tmp_path / "r", download=False)
