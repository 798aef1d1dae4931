"""Videos of LeRobot: which file has the frames of an episode, and samples with decoded frames."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_datasets.arrow_columns import read_batches
from rl_datasets.chunk import EPISODE
from rl_datasets.flat_columns import BLOCK_ROWS
from rl_datasets.video_file import VideoFiles
from rl_layout.keys import NEXT, NEXT_MISSING
from rl_tensordict import find
from rl_tensordict.types import Array, Ints, KeyPath

_COLUMNS = ("chunk_index", "file_index", "from_timestamp")


class VideoStart(NamedTuple):
    """Where the video of an episode begins."""

    path: Path
    begin: float  # seconds


class Videos:
    """The videos of a dataset, in v3 of several episodes a file, in v2.1 of one.

    A frame of an episode is shown its timestamp after the episode begins in the file; it has to be
    there within half the time of a frame.

    Args:
        folder: The folder with `meta/info.json`.
        info: What is in that file.
    """

    def __init__(self, folder: Path, info: Mapping[str, Any]) -> None:
        self.folder, self._info = folder, info
        self.names = [n for n, one in info["features"].items() if one["dtype"] == "video"]
        self.fps = float(info.get("fps", 0))
        self.open_files = VideoFiles()

    def frames(self, name: str, episodes: Ints, times: Array) -> Array:
        """Frames of a feature, uint8 `[N, height, width, 3]`, by episode and time in it `[N]`.

        Raises:
            FileNotFoundError: There is no such video.
            ValueError: A damaged video, one without such a frame, or an episode without a video.
        """
        numbers, of_row = np.unique(episodes, return_inverse=True)
        places = [self._place(name, int(number)) for number in numbers]
        shown = np.array([place.begin for place in places])[of_row] + times
        files = {path: np.flatnonzero([p.path == path for p in places]) for path, _ in places}
        found: Array | None = None
        for path, members in files.items():
            rows = np.flatnonzero(np.isin(of_row, members))
            frames = self.open_files.frames(path, shown[rows], 0.5 / self.fps)
            if found is None:
                found = np.empty((len(times), *frames.shape[1:]), np.uint8)
            found[rows] = frames
        assert found is not None  # there is a row
        return found

    def _place(self, name: str, episode: int) -> VideoStart:
        template = self._info.get("video_path") or ""
        if "episode_index" in template:  # v2.1
            chunk = episode // int(self._info.get("chunks_size", 1000))
            path = template.format(episode_chunk=chunk, video_key=name, episode_index=episode)
            return VideoStart(self.folder / path, 0.0)
        try:
            chunk, file, begin = self._table[name][episode]
        except KeyError:
            raise ValueError(
                f"{self.folder / 'meta' / 'episodes'} names no video {name!r} of episode {episode}."
            ) from None
        path = template.format(video_key=name, chunk_index=int(chunk), file_index=int(file))
        return VideoStart(self.folder / path, begin)

    @cached_property
    def _table(self) -> dict[str, dict[int, tuple[int, int, float]]]:
        """Chunk, file and beginning of each episode, by feature."""
        found: dict[str, dict[int, tuple[int, int, float]]] = {name: {} for name in self.names}
        for path in sorted((self.folder / "meta" / "episodes").rglob("*.parquet")):
            for name in self.names:
                columns = [f"videos/{name}/{one}" for one in _COLUMNS]
                for batch in read_batches(path, ["episode_index", *columns], BLOCK_ROWS):
                    rows = batch.to_pydict()
                    if all(column in rows for column in columns):
                        places = zip(*(rows[column] for column in columns), strict=True)
                        found[name].update(zip(rows["episode_index"], places, strict=True))
        return found


class VideoFrames:
    """Adds the frames of videos to a sample, before and after each step.

    After a step whose next observation is missing there is none: its frame is zero.

    Args:
        videos: Where the frames are.
        keys: The key of each feature.
        time: The key of timestamps, seconds since the episode began.
    """

    def __init__(self, videos: Videos, keys: Mapping[str, KeyPath], time: KeyPath) -> None:
        self.videos, self.keys, self._time = videos, dict(keys), time

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """The same sample with frames, uint8 `[N, height, width, 3]`."""
        episodes = batch[EPISODE].reshape(-1).numpy()
        times = batch[self._time].reshape(-1).double().numpy()
        missing = find(batch, NEXT_MISSING)
        is_there = np.ones(len(times), bool) if missing is None else ~missing.reshape(-1).numpy()
        wanted = np.concatenate([times, times[is_there] + 1 / self.videos.fps])
        of = np.concatenate([episodes, episodes[is_there]])
        for name, key in self.keys.items():
            frames = self.videos.frames(name, of, wanted)
            after = np.zeros_like(frames[: len(times)])
            after[is_there] = frames[len(times) :]
            for path, rows in ((key, frames[: len(times)]), ((NEXT, *key), after)):
                batch.set(path, torch.from_numpy(rows).reshape(*batch.shape, *rows.shape[1:]))
        return batch

    def __repr__(self) -> str:
        return f"VideoFrames({', '.join(self.keys)})"
