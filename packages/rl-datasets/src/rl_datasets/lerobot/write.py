"""Steps written as a dataset of LeRobot v3."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.arrow_columns import import_parquet, to_column
from rl_datasets.download import inside
from rl_datasets.episodes import Episode
from rl_datasets.folders import root_of
from rl_datasets.lerobot.source import KEYS, LAST_FILE
from rl_datasets.paths import path_of
from rl_datasets.written_episodes import Steps, episodes_of, new_dataset
from rl_layout.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.arguments import as_integer, check_number, check_type
from rl_tensordict.types import Array, KeyPath

VERSION = "v3.0"
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_FILE_MB = 100
_OWN = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def to_lerobot(  # noqa: PLR0913 - what a dataset is described by
    data: Steps,
    repo_id: str,
    *,
    root: str | Path | None = None,
    fps: float = 30,
    task: str = "",
    robot_type: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write steps as a dataset of LeRobot v3, which reads back bit for bit.

    Keys become features with dots; a plain `"observation"` becomes `"observation.state"`. The
    format has no place for what was seen after the last step of an episode: it is written to a
    table in `meta`, which LeRobot passes over and `LeRobotExperienceReplay` reads.

    Args:
        data: A buffer, a batch of whole trajectories, or batches as a collector makes them.
        repo_id: Its name, `"me/steps"`.
        root: The folder of all datasets; `$RL_DATASETS` or `~/.cache/rl-datasets` unless given.
        fps: Steps a second, from which timestamps are made.
        task: What was to be done.
        robot_type: Who did it.
        metadata: What else `meta/info.json` is to tell.

    Returns:
        Its folder.

    Raises:
        FileExistsError: There is a dataset of that name.
        ValueError: No step, no positive `fps`, or next observations that are not the observations
            of the next rows.

    Example:
        >>> import tempfile
        >>> from rl_layout.testing import trajectories
        >>> with tempfile.TemporaryDirectory() as root:
        ...     folder = to_lerobot(trajectories([5, 3]), "me/steps", root=root)
        ...     sorted(path.name for path in (folder / "meta").glob("*.*"))
        ['info.json', 'last_observations.parquet', 'stats.json', 'tasks.parquet']
    """
    check_type("repo_id", repo_id, str, "the name of a dataset")
    check_number("fps", fps)
    if not 0 < fps < math.inf:
        raise ValueError(f"fps: expected a number of steps a second above 0, got {fps}.")
    whole = as_integer(fps)
    if metadata is not None:
        check_type("metadata", metadata, Mapping, "what is to be told of it, by names")
    folder = inside(root_of(root) if root is None else path_of(root, "root"), repo_id)
    with new_dataset(folder) as making:
        with _Tables(making, float(fps)) as tables:
            for episode in episodes_of(data, keep_missing=True):
                tables.take(episode)
        rate = float(fps) if whole is None else whole  # which JSON has
        about = {"codebase_version": VERSION, "robot_type": robot_type, "fps": rate}
        tables.describe({**about, **(metadata or {})}, task)
    return folder


class _Tables:
    """The tables of a dataset while it is written."""

    def __init__(self, folder: Path, fps: float) -> None:
        self.folder, self.fps = folder, fps
        self.frames = self.file = 0
        self.episodes: list[dict[str, Any]] = []
        self.last: list[dict[str, Array]] = []
        self.names: dict[str, KeyPath] = {}
        self.seen: list[str] = []
        self.forms: dict[str, tuple[str, list[int]]] = {}
        self.stats: dict[str, _Statistics] = {}
        self.writer: Any = None

    def take(self, episode: Episode) -> None:
        """Writes an episode."""
        pa, _ = import_parquet()
        count, number = len(episode), len(self.episodes)
        columns = {**episode.observations, **episode.columns}
        columns.pop(("episode",), None)
        columns[NEXT_DONE] = columns[NEXT_TERMINATED] | columns[NEXT_TRUNCATED]
        rows = {_feature(key): column[:count] for key, column in columns.items()}
        if not self.names:
            self.names = {_feature(key): key for key in columns}
            self.seen = [_feature(key) for key in episode.observations]
        frames = np.arange(count)
        rows["timestamp"] = (frames / self.fps).astype(np.float32)
        rows |= {"frame_index": frames, "episode_index": np.full(count, number)}
        rows |= {"index": frames + self.frames, "task_index": np.zeros(count, np.int64)}
        for name, column in rows.items():
            shape = list(column.shape[1:]) or [1]
            self.forms.setdefault(name, (str(column.dtype), shape))
            self.stats.setdefault(name, _Statistics()).take(column)
        table = pa.table({name: to_column(column) for name, column in rows.items()})
        self._write(table)
        if episode.has_last:
            last = {_feature(key): column[-1:] for key, column in episode.observations.items()}
            self.last.append({"episode_index": np.array([number]), **last})
        self.episodes.append(
            {
                "episode_index": number,
                "length": count,
                "data/chunk_index": 0,
                "data/file_index": self.file,
                "dataset_from_index": self.frames,
                "dataset_to_index": self.frames + count,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        self.frames += count

    def _write(self, table: Any) -> None:
        _, pq = import_parquet()
        path = self.folder / _DATA.format(chunk_index=0, file_index=self.file)
        if self.writer is not None and path.stat().st_size > _FILE_MB << 20:
            self.writer.close()
            self.writer, self.file = None, self.file + 1
            path = self.folder / _DATA.format(chunk_index=0, file_index=self.file)
        if self.writer is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(path, table.schema)
        self.writer.write_table(table)

    def describe(self, about: Mapping[str, Any], task: str) -> None:
        """Writes what the tables are: features, episodes, tasks, statistics."""
        pa, pq = import_parquet()
        if not self.episodes:
            raise ValueError("there is no step to be written.")
        meta = self.folder / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        table = pa.table({name: [one[name] for one in self.episodes] for name in self.episodes[0]})
        table = table.append_column("tasks", pa.array([[task]] * len(self.episodes)))
        pq.write_table(table, meta / "episodes" / "chunk-000" / "file-000.parquet")
        pq.write_table(_task_table(task), meta / "tasks.parquet")
        if self.last:
            columns = {
                name: to_column(np.concatenate([one[name] for one in self.last]))
                for name in self.last[0]
            }
            pq.write_table(pa.table(columns), self.folder / LAST_FILE)
        info = {
            **about,
            "total_episodes": len(self.episodes),
            "total_frames": self.frames,
            "total_tasks": 1,
            "chunks_size": 1000,
            "data_files_size_in_mb": _FILE_MB,
            "video_files_size_in_mb": 500,
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": _DATA,
            "video_path": _VIDEO,
            "features": {
                name: {"dtype": dtype, "shape": shape, "names": None}
                for name, (dtype, shape) in self.forms.items()
            },
            KEYS: {name: list(path) for name, path in self.names.items()},
            "last_observations": self.seen,
        }
        (meta / "info.json").write_text(json.dumps(info, indent=1), encoding="utf-8")
        stats = {name: one.to_dict() for name, one in self.stats.items()}
        (meta / "stats.json").write_text(json.dumps(stats, indent=1), encoding="utf-8")

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()


class _Statistics:
    """Range, mean and deviation of a feature, as LeRobot normalises by them."""

    def __init__(self) -> None:
        self.count = 0
        self.low: Any = None
        self.high: Any = None
        self.sums: Any = 0.0
        self.squares: Any = 0.0

    def take(self, column: Array) -> None:
        rows = column.reshape(len(column), *(column.shape[1:] or (1,))).astype(np.float64)
        low, high = rows.min(0), rows.max(0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)
        self.count += len(rows)
        self.sums, self.squares = self.sums + rows.sum(0), self.squares + (rows**2).sum(0)

    def to_dict(self) -> dict[str, Any]:
        mean = self.sums / self.count
        spread = np.sqrt(np.maximum(self.squares / self.count - mean**2, 0))
        found = {"min": self.low, "max": self.high, "mean": mean, "std": spread}
        return {**{name: one.tolist() for name, one in found.items()}, "count": [self.count]}


def _feature(key: KeyPath) -> str:
    name = ".".join(key)
    if name in _OWN:
        return f"{name}.own"
    return "observation.state" if name == "observation" else name


def _task_table(task: str) -> Any:
    """The table of tasks, whose index of pandas is the text."""
    pa, _ = import_parquet()
    index = "__index_level_0__"
    kinds = [("task_index", "task_index", "int64", "int64"), (None, index, "unicode", "object")]
    about = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [
            {"name": a, "field_name": b, "pandas_type": c, "numpy_type": d, "metadata": None}
            for a, b, c, d in kinds
        ],
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": np.zeros(1, np.int64), index: [task]})
    return table.replace_schema_metadata({"pandas": json.dumps(about)})
