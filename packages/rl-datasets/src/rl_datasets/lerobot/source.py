"""Episodes of LeRobot: frames in tables of Parquet, described by JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.arrow_columns import read_batches, to_array
from rl_datasets.encoded_images import decode_image
from rl_datasets.episodes import CountedFiles, Episode, key_text
from rl_datasets.flat_columns import BLOCK_ROWS
from rl_datasets.lerobot.videos import Videos
from rl_datasets.paths import PathName, path_of
from rl_layout.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.types import Array, KeyPath

KEYS = "rl_datasets_keys"  # in info.json, where the features have other names than our keys
LAST_FILE = "meta/last_observations.parquet"  # of our own: what LeRobot has no place for
SUCCESS: KeyPath = ("next", "success")
_COUNTERS = ("frame_index", "episode_index", "index")


class LeRobotSource(CountedFiles):
    """Episodes of LeRobot v3, or v2.1: one row for each frame.

    What was seen after the last step is not in the files, unless `to_lerobot` wrote them. A frame
    that is done is taken for terminated if it is a success, else for truncated.

    Args:
        folder: The folder with `meta/info.json`.
        key_map: Other keys for features, `{"observation.state": "observation"}`.
        decode_video: Whether frames of videos are columns; they are left out otherwise.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: Damaged files.
    """

    format = "lerobot"

    def __init__(
        self,
        folder: PathName,
        *,
        key_map: Mapping[str, NestedKey] | None = None,
        decode_video: bool = False,
    ) -> None:
        self.folder = folder = path_of(folder)
        self.info = _read_info(folder)
        self.format = f"lerobot {self.info.get('codebase_version', '')}".strip()
        self._data = sorted((folder / "data").rglob("*.parquet"))
        if not self._data:
            raise FileNotFoundError(f"there is no .parquet file in {folder / 'data'}.")
        last = folder / LAST_FILE
        described = [folder / "meta" / "info.json", *([last] if last.exists() else [])]
        super().__init__([*self._data, *described])
        self._steps = int(self.info["total_frames"])
        self._key_map = {name: as_tuple(key) for name, key in (key_map or {}).items()}
        self._videos = Videos(folder, self.info) if decode_video else None
        keys = feature_keys(self.info, self._key_map)
        self.features = {name: key for name, key in keys.items() if self._is_read(name)}
        self._video_keys = {name: keys[name] for name in self._videos.names} if self._videos else {}
        self.metadata = {name: one for name, one in self.info.items() if name != KEYS}
        self.metadata["folder"] = str(folder.absolute())
        self.metadata["tasks"] = _tasks(folder)
        self._lengths = _lengths(folder)
        self._note()

    @property
    def options(self) -> dict[str, Any]:
        """The keys of features, and whether videos are among them."""
        found: dict[str, Any] = {name: list(path) for name, path in self._key_map.items()}
        return {"key_map": found, **({"video": True} if self._videos else {})}

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes by frames that follow each other."""
        last = self._last_observations()
        for place, (number, rows) in enumerate(self._runs()):
            if place < first:
                continue
            at = f"{self.folder}, episode {number}"
            count = len(rows["frame_index"])
            if self._lengths and self._lengths.get(number) != count:
                raise ValueError(
                    f"{at}: its tables have {count} frames, its metadata say "
                    f"{self._lengths.get(number)}."
                )
            if not np.array_equal(rows["frame_index"], np.arange(count)):
                raise ValueError(f"{at}: frames are missing, or in another order.")
            yield self._episode(rows, last.get(number), at, number)

    def _episode(
        self, rows: dict[str, Array], last: Mapping[str, Array] | None, place: str, number: int
    ) -> Episode:
        seen: dict[KeyPath, Array] = {}
        columns: dict[KeyPath, Array] = {}
        for name, key in self.features.items():
            if key[0] == "observation" or (last is not None and name in last):
                end = [] if last is None else [last[name]]
                seen[key] = np.concatenate([rows[name], *end])
            else:
                columns[key] = rows[name]
        for name, key in self._video_keys.items():
            seen[key] = self._frames(name, rows, number)
        _set_flags(columns, len(rows["frame_index"]))
        return Episode(seen, columns, place, number)

    def _frames(self, name: str, rows: dict[str, Array], number: int) -> Array:
        """The frames of a video that an episode has."""
        assert self._videos is not None  # there is a key
        count = len(rows["frame_index"])
        times = rows["timestamp"].reshape(count).astype(np.float64)
        return self._videos.frames(name, np.full(count, number), times)

    def _runs(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """Rows of one episode each, which may go on in the next table."""
        waiting: list[dict[str, Array]] = []
        for path in self._data:
            for rows in self._tables(path):
                ids = rows["episode_index"]
                bounds = np.flatnonzero(np.diff(ids)) + 1
                for begin, end in zip([0, *bounds], [*bounds, len(ids)], strict=True):
                    piece = {name: column[begin:end] for name, column in rows.items()}
                    if waiting and waiting[0]["episode_index"][0] != ids[begin]:
                        yield _joined(waiting)
                        waiting = []
                    waiting.append(piece)
        if waiting:
            yield _joined(waiting)

    def _tables(self, path: Path) -> Iterator[dict[str, Array]]:
        names = dict.fromkeys([*self.features, *_COUNTERS[:2]])
        for batch in read_batches(path, list(names), BLOCK_ROWS):
            found = {}
            for name in names:
                if name not in batch.schema.names:
                    raise ValueError(f"{path} has no column {name!r}, which info.json describes.")
                found[name] = self._column(path, name, batch.column(name))
            if len(batch):
                yield found

    def _column(self, path: Path, name: str, column: Any) -> Array:
        feature = self.info["features"].get(name, {"dtype": "int64", "shape": [1]})
        if feature["dtype"] == "image":
            return _images(column)
        shape = [] if list(feature["shape"]) == [1] and not _is_nested(column) else feature["shape"]
        try:
            found = to_array(column, shape)
        except ValueError as error:
            raise ValueError(f"{path}, column {name!r}: {error}.") from error
        return found.astype(feature["dtype"], copy=False)

    def _is_read(self, name: str) -> bool:
        dtype = self.info["features"][name]["dtype"]
        if dtype == "video" and self._videos:
            self.lossy[key_text(tuple(name.split(".")))] = "its frames are those of a video"
        elif dtype == "video":
            self.left_out[name] = "its frames stay in the videos"
        elif dtype == "string":
            self.left_out[name] = "text is no number"
        elif dtype == "image":
            self.lossy[key_text(tuple(name.split(".")))] = "where its frames are JPEG"
        return dtype not in ("video", "string") and name not in _COUNTERS

    def _note(self) -> None:
        keys = set(self.features.values())
        if NEXT_TERMINATED in keys:
            return
        if NEXT_DONE in keys:
            kind = "terminated if it is a success, else " if SUCCESS in keys else ""
            self.assumptions.append(f"a frame that is done is taken for {kind}truncated")
        else:
            self.assumptions.append("no flag says why episodes end: they are cut")

    def _last_observations(self) -> dict[int, dict[str, Array]]:
        """What was seen after the last steps, by episode."""
        path = self.folder / LAST_FILE
        found: dict[int, dict[str, Array]] = {}
        if not path.exists():
            return found
        names = [name for name in self.info.get(KEYS, {}) if name in self.info["last_observations"]]
        for batch in read_batches(path, ["episode_index", *names], BLOCK_ROWS):
            columns = {name: self._column(path, name, batch.column(name)) for name in names}
            for row, number in enumerate(batch.column("episode_index").to_pylist()):
                found[number] = {name: one[row : row + 1] for name, one in columns.items()}
        return found


def feature_keys(info: Mapping[str, Any], key_map: Mapping[str, KeyPath]) -> dict[str, KeyPath]:
    """The key of each feature: by a map, as `to_lerobot` noted it, or split at its dots."""
    own = {name: tuple(path) for name, path in info.get(KEYS, {}).items()}
    return {
        name: key_map.get(name, own.get(name, tuple(name.split(".")))) for name in info["features"]
    }


def _set_flags(columns: dict[KeyPath, Array], steps: int) -> None:
    """Terminated and truncated, of the flags that there are."""
    if NEXT_TERMINATED not in columns:
        done = columns.pop(NEXT_DONE, np.zeros(steps, bool)).reshape(steps).astype(bool)
        success = columns.get(SUCCESS, np.zeros(steps, bool)).reshape(steps).astype(bool)
        columns[NEXT_TERMINATED] = done & success
        columns[NEXT_TRUNCATED] = done & ~success
    columns.pop(NEXT_DONE, None)
    columns.setdefault(NEXT_TRUNCATED, np.zeros(steps, bool))


def _joined(pieces: list[dict[str, Array]]) -> tuple[int, dict[str, Array]]:
    number = int(pieces[0]["episode_index"][0])
    if len(pieces) == 1:
        return number, pieces[0]
    return number, {name: np.concatenate([one[name] for one in pieces]) for name in pieces[0]}


def _is_nested(column: Any) -> bool:
    return hasattr(column.type, "value_type")


def _images(column: Any) -> Array:
    """Frames of a column of encoded images, uint8 `[N, height, width, channels]`."""
    return np.stack([decode_image(one["bytes"]) for one in column.to_pylist()])


def _read_info(folder: Path) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    try:
        info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = int(info["total_frames"]), info["features"].items()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no meta/info.json in {folder}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a dataset of LeRobot: {error!r}.") from error
    return info


def _tasks(folder: Path) -> dict[str, str]:
    """Texts of tasks by their number."""
    lines = folder / "meta" / "tasks.jsonl"
    if lines.exists():
        rows = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
        return {str(row["task_index"]): row["task"] for row in rows}
    path = folder / "meta" / "tasks.parquet"
    if not path.exists():
        return {}
    from rl_datasets.arrow_columns import open_parquet

    with open_parquet(path) as file:
        rows = file.read().to_pylist()
    names = ("task", "__index_level_0__")
    return {str(row["task_index"]): next(row[n] for n in names if n in row) for row in rows}


def _lengths(folder: Path) -> dict[int, int]:
    """Frames of each episode, as the metadata say."""
    lines = folder / "meta" / "episodes.jsonl"
    if lines.exists():
        rows = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
        return {int(row["episode_index"]): int(row["length"]) for row in rows}
    found: dict[int, int] = {}
    for path in sorted((folder / "meta" / "episodes").rglob("*.parquet")):
        for batch in read_batches(path, ["episode_index", "length"], BLOCK_ROWS):
            numbers, lengths = (
                batch.column(name).to_pylist() for name in ("episode_index", "length")
            )
            found.update(zip(numbers, lengths, strict=True))
    return found
