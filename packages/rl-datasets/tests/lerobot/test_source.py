import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rl_datasets import LeRobotExperienceReplay
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = [4, 3, 6]


def table_of(rows):
    """A table as LeRobot writes it: lists for vectors, structs for images."""
    columns = {}
    for name, column in rows.items():
        if column.dtype == np.uint8:
            frames = [{"bytes": png(frame), "path": None} for frame in column]
            columns[name] = pa.array(frames)
        elif column.ndim == 1:
            columns[name] = pa.array(column)
        else:
            columns[name] = pa.array(column.tolist(), pa.list_(pa.from_numpy_dtype(column.dtype)))
    return pa.table(columns)


def png(frame):
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG")
    return buffer.getvalue()


def write(folder, *, version="v3.0", success=True, lengths=LENGTHS, **changed):
    rng = np.random.default_rng(0)
    count = sum(lengths)
    ends = np.zeros(count, bool)
    ends[np.cumsum(lengths) - 1] = True
    rows = {
        "observation.state": rng.normal(size=(count, 2)).astype(np.float32),
        "observation.images.top": rng.integers(0, 256, (count, 8, 6, 3), dtype=np.uint8),
        "action": rng.normal(size=(count, 3)).astype(np.float32),
        "next.reward": rng.normal(size=count).astype(np.float32),
        "next.done": ends,
        "next.success": ends & (np.arange(count) < 6),
        "timestamp": np.concatenate([np.arange(n) / 10 for n in lengths]).astype(np.float32),
        "frame_index": np.concatenate([np.arange(n) for n in lengths]),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(count),
        "task_index": np.repeat([0, 1, 0], lengths),
    }
    if not success:
        del rows["next.success"]
    rows |= changed
    features = {
        name: {
            "dtype": "image" if column.dtype == np.uint8 else str(column.dtype),
            "shape": list(column.shape[1:]) or [1],
        }
        for name, column in rows.items()
    }
    features["observation.images.side"] = {"dtype": "video", "shape": [8, 6, 3]}
    (folder / "meta").mkdir(parents=True)
    info = {"codebase_version": version, "fps": 10, "total_frames": count, "features": features}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    save_tables(folder, rows, version, lengths)
    return rows


def save_tables(folder, rows, version, lengths):
    count = sum(lengths)
    table, episodes = table_of(rows), {"episode_index": range(3), "length": list(lengths)}
    if version == "v3.0":
        for number, (begin, end) in enumerate([(0, 5), (5, count)]):  # an episode over two files
            path = folder / "data" / "chunk-000" / f"file-{number:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.slice(begin, end - begin), path)
        path = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({name: list(one) for name, one in episodes.items()}), path)
        tasks = {"task_index": [0, 1], "__index_level_0__": ["pick", "place"]}
        pq.write_table(pa.table(tasks), folder / "meta" / "tasks.parquet")
    else:
        bounds = np.r_[0, np.cumsum(lengths)]
        for number, length in enumerate(lengths):
            path = folder / "data" / "chunk-000" / f"episode_{number:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.slice(bounds[number], length), path)
        lines = [{"episode_index": n, "length": length} for n, length in enumerate(lengths)]
        (folder / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        lines = [{"task_index": 0, "task": "pick"}, {"task_index": 1, "task": "place"}]
        (folder / "meta" / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))


def opened(tmp_path, **options):
    return LeRobotExperienceReplay(
        "me/some",
        path=tmp_path / "files",
        root=tmp_path / "r",
        verbose=False,
        decode_video=False,
        **options,
    )


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_every_frame_is_that_of_the_tables(tmp_path, version):
    made = write(tmp_path / "files", version=version)
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    for key, name in [
        (("observation", "state"), "observation.state"),
        (("observation", "images", "top"), "observation.images.top"),
        ("action", "action"),
        ("timestamp", "timestamp"),
        ("task_index", "task_index"),
        ("episode", "episode_index"),
    ]:
        assert np.array_equal(rows[key], made[name])
    assert np.array_equal(rows["next", "reward"].squeeze(-1), made["next.reward"])
    lasts = np.cumsum(LENGTHS) - 1
    assert rows["collector", "next_missing"].nonzero().flatten().tolist() == lasts.tolist()
    inside = np.setdiff1d(np.arange(len(rows)), lasts)
    after = made["observation.state"][inside + 1]
    assert np.array_equal(rows["next", "observation", "state"][inside], after)
    assert not check_layout(rows).findings
    assert data.metadata["tasks"] == {"0": "pick", "1": "place"}
    assert "observation.images.side" in data.report.left_out


def test_done_frames_are_told_apart_by_success(tmp_path):
    write(tmp_path / "files")
    data = opened(tmp_path)
    assert data[:]["next", "terminated"].squeeze(-1).nonzero().flatten().tolist() == [3]
    assert (data.report.terminated, data.report.truncated) == (1, 2)
    assert "terminated if it is a success" in data.report.assumptions[0]


def test_without_success_done_frames_are_truncated(tmp_path):
    write(tmp_path / "files", success=False)
    report = opened(tmp_path).report
    assert report.truncated == 3
    assert report.assumptions == ["a frame that is done is taken for truncated"]


def test_features_may_have_other_keys(tmp_path):
    made = write(tmp_path / "files")
    data = opened(tmp_path, key_map={"observation.state": ("observation", "arm")})
    assert np.array_equal(data[:]["observation", "arm"], made["observation.state"])


def test_tables_that_contradict_the_metadata_are_refused(tmp_path):
    write(tmp_path / "files", version="v2.1")
    path = tmp_path / "files" / "meta" / "episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 3', '"length": 2'))
    with pytest.raises(ValueError, match="episode 1: its tables have 3 frames, its metadata say 2"):
        opened(tmp_path)


def test_missing_frames_are_refused(tmp_path):
    write(tmp_path / "files", frame_index=np.r_[0, 1, 3, 4, :3, :6])
    with pytest.raises(ValueError, match="episode 0: frames are missing"):
        opened(tmp_path)


def test_damaged_tables_are_refused(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "data" / "chunk-000" / "file-001.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"file-001\.parquet is damaged, or ends too early"):
        opened(tmp_path)
    (tmp_path / "files" / "meta" / "info.json").write_text("{}")
    with pytest.raises(ValueError, match=r"info\.json does not describe"):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no meta/info\.json"):
        LeRobotExperienceReplay("me/x", path=tmp_path / "r", root=tmp_path / "r2")


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 6 steps"):
        opened(tmp_path, slice_len=99)
