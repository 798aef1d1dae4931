"""The buffer over a dataset of LeRobot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rl_datasets.download import HubDataset
from rl_datasets.episodes import EpisodeSource
from rl_datasets.folders import unknown_id
from rl_datasets.lerobot.source import LeRobotSource, feature_keys
from rl_datasets.lerobot.videos import VideoFrames, Videos
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_datasets.video_file import import_av
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.arguments import check_choice, check_type


class LeRobotExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of LeRobot, v3 or v2.1, without the lerobot package.

    Features become keys at their dots: `"observation.state"` is `("observation", "state")`. Rows
    have `"task_index"`; the texts are in `metadata["tasks"]`. What was seen after a last frame is
    not in the files, so its row is marked `("collector", "next_missing")`.

    Videos stay as they are, and a sample has the frames of its rows, uint8 `[N, height, width, 3]`,
    by their timestamps; each frame is decoded once a sample, and eight files stay open.

    Args:
        repo_id: As the hub names it, `"lerobot/pusht"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        key_map: Other keys for features.
        revision: A branch, a tag or a commit.
        decode_video: False leaves videos out; "once" decodes them when the dataset is converted, to
            rows that need no decoder, and much of the disk.
        rehydrate: No effect: samples always have next observations.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: Damaged files, or tables that contradict the metadata; `split_trajs` with
            videos.
        FileNotFoundError: The dataset is not there.
        ImportError: It has videos, and PyAV is not installed.

    Example:
        >>> import tempfile
        >>> from rl_datasets import to_lerobot
        >>> from rl_layout.testing import trajectories
        >>> with tempfile.TemporaryDirectory() as root:
        ...     folder = to_lerobot(trajectories([5, 3]), "me/steps", root=root, fps=10)
        ...     data = LeRobotExperienceReplay("me/steps", path=folder, root=root, verbose=False)
        ...     len(data), data.metadata["fps"]
        (8, 10)
    """

    family = "lerobot"
    sources_of_copies = "Its datasets are on https://huggingface.co/datasets."

    def __init__(
        self,
        repo_id: str,
        batch_size: int | None = None,
        *,
        key_map: Mapping[str, NestedKey] | None = None,
        revision: str = "main",
        decode_video: bool | Literal["once"] = True,
        rehydrate: bool = False,
        **options: Any,
    ) -> None:
        del rehydrate
        check_type("revision", revision, str, "a branch, a tag or a commit")
        if key_map is not None:
            check_type("key_map", key_map, Mapping, "keys by the names of features")
        check_choice("decode_video", decode_video, [True, False, "once"])
        self._key_map, self._revision = key_map, revision
        self._decode_video = decode_video
        super().__init__(repo_id, batch_size, **options)
        if decode_video is True:
            self._add_frames(options.get("path"), is_padded=options.get("split_trajs", False))

    def _add_frames(self, path: str | os.PathLike[str] | None, *, is_padded: bool) -> None:
        """Lets samples have the frames of videos, if there are any."""
        downloaded = self.data_path / "files"
        known = downloaded if downloaded.exists() else Path(self.metadata["folder"])
        videos = Videos(known if path is None else Path(path), self.metadata)
        if not videos.names:
            return
        import_av()
        if is_padded:
            raise ValueError(
                "trajectories in memory have no videos: leave split_trajs out, or take "
                'decode_video="once" or False.'
            )
        if not videos.folder.exists():
            raise FileNotFoundError(
                f"the videos were in {videos.folder}, which is gone: give its new place with "
                "path=, or decode_video=False."
            )
        own = {name: as_tuple(key) for name, key in (self._key_map or {}).items()}
        keys = feature_keys(self.metadata, own)
        of_videos = {name: keys[name] for name in videos.names}
        self.insert_transform(0, VideoFrames(videos, of_videos, keys["timestamp"]))

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a folder with `meta/info.json`."""
        return LeRobotSource(path, key_map=self._key_map, decode_video=self._decode_video == "once")

    def fetch(self, folder: Path) -> None:
        """Download tables, descriptions, and unless they are left out videos, from the hub."""
        hub = HubDataset(self.dataset_id, self._revision)
        wanted = ("meta/", "data/", *(["videos/"] if self._decode_video else []))
        try:
            hub.fetch(folder, wanted=lambda path: path.startswith(wanted))
        except FileNotFoundError as error:
            known = hub.siblings()
            if known and self.dataset_id not in known:
                raise unknown_id(self.dataset_id, known, self.family) from error
            raise
