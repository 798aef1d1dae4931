"""The buffer over a dataset of LeRobot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_datasets.download import HubDataset
from rl_datasets.episodes import EpisodeSource
from rl_datasets.lerobot.source import LeRobotSource
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_tensordict import NestedKey


class LeRobotExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of LeRobot, v3 or v2.1, without the lerobot package.

    Features become keys at their dots: `"observation.state"` is `("observation", "state")`. Rows
    have `"task_index"`; the texts are in `metadata["tasks"]`. What was seen after a last frame is
    not in the files, so its row is marked `("collector", "next_missing")`. Videos are left out.

    Args:
        repo_id: As the hub names it, `"lerobot/pusht"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        key_map: Other keys for features.
        revision: A branch, a tag or a commit.
        decode_video: No effect yet: videos are left out, and the report says so.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: Damaged files, or tables that contradict the metadata.
        FileNotFoundError: The dataset is not there.

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
        decode_video: bool = True,
        **options: Any,
    ) -> None:
        del decode_video
        self._key_map, self._revision = key_map, revision
        super().__init__(repo_id, batch_size, **options)

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a folder with `meta/info.json`."""
        return LeRobotSource(path, key_map=self._key_map)

    def fetch(self, folder: Path) -> None:
        """Download tables and descriptions from the hub, not the videos."""
        hub = HubDataset(self.dataset_id, self._revision)
        hub.fetch(folder, wanted=lambda path: path.startswith(("meta/", "data/")))
