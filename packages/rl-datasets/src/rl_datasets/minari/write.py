"""Steps written as a dataset of Minari."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_datasets.download import inside
from rl_datasets.episodes import Episode, key_text
from rl_datasets.hdf5_file import import_h5py
from rl_datasets.minari.hdf5 import MAIN_FILE
from rl_datasets.minari.replay import minari_root
from rl_datasets.minari.source import METADATA_FILE
from rl_datasets.minari.spaces import box_of, nested, plain_space
from rl_datasets.paths import path_of
from rl_datasets.written_episodes import Steps, episodes_of, new_dataset, written_columns
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.arguments import check_type
from rl_tensordict.types import Array, KeyPath

MINARI_VERSION = "0.5.4"


def to_minari(  # noqa: PLR0913 - what a dataset is described by
    data: Steps,
    dataset_id: str,
    *,
    root: str | Path | None = None,
    observation_space: Any = None,
    action_space: Any = None,
    metadata: Mapping[str, Any] | None = None,
    drop_missing: bool = False,
) -> Path:
    """Write steps as a dataset of Minari in HDF5, which reads back bit for bit.

    Observations are leaves that rows have before and after a step. Those under `"observation"` and
    `"info"` go to the groups of these names; other ones become entries of a space that is a dict.
    Frames are written as they are, not as JPEG. Other leaves than observations, `"action"`, reward
    and flags have no place in the format and are left out with a warning.

    Args:
        data: A buffer, a batch of whole trajectories, or batches as a collector makes them.
        dataset_id: Its name, which ends in a version: `"demo/pole-v0"`.
        root: The folder of all datasets; Minari's own unless given.
        observation_space: A space of Gymnasium, or one as Minari writes it; made from the data
            unless given, without bounds.
        action_space: Likewise; give it for discrete actions, of which the data tell no number.
        metadata: What else is to be told of it: author, code_permalink, env_spec, and others.
        drop_missing: Leave out last steps whose next observation is missing.

    Returns:
        Its folder.

    Raises:
        FileExistsError: There is a dataset of that name.
        ValueError: A next observation is missing, or is not the observation of the next row.

    Example:
        >>> import tempfile
        >>> from rl_layout.testing import trajectories
        >>> with tempfile.TemporaryDirectory() as root:
        ...     folder = to_minari(trajectories([5, 3]), "demo/steps-v0", root=root)
        ...     sorted(path.name for path in (folder / "data").iterdir())
        ['main_data.hdf5', 'metadata.json']
    """
    check_type("dataset_id", dataset_id, str, "the name of a dataset")
    if metadata is not None:
        check_type("metadata", metadata, Mapping, "what is to be told of it, by names")
    h5py = import_h5py()
    folder = inside(minari_root() if root is None else path_of(root, "root"), dataset_id)
    with new_dataset(folder) as making:
        (making / "data").mkdir(parents=True)
        written = _Written()
        with h5py.File(making / "data" / MAIN_FILE, "w") as file:
            for number, episode in enumerate(episodes_of(data, drop_missing=drop_missing)):
                written.take(file.create_group(f"episode_{number}", track_order=True), episode)
        about = written.metadata(dataset_id, observation_space, action_space, metadata or {})
        text = json.dumps(about)
        (making / "data" / METADATA_FILE).write_text(text, encoding="utf-8")
    return folder


class _Written:
    """What was written so far."""

    def __init__(self) -> None:
        self.steps = self.episodes = 0
        self.spaces: dict[str, dict[KeyPath, Any]] = {}
        self.left_out: set[str] = set()

    def take(self, group: Any, episode: Episode) -> None:
        """Writes an episode."""
        group.attrs["id"], group.attrs["total_steps"] = self.episodes, len(episode)
        columns = {**_placed(episode.observations), **self._actions(episode)}
        for path, column in columns.items():
            group.create_dataset("/".join(path), data=column)
        if NEXT_REWARD not in episode.columns:
            raise ValueError("Minari wants rewards, and the steps have none.")
        group.create_dataset("rewards", data=episode.columns[NEXT_REWARD])
        group.create_dataset("terminations", data=episode.columns[NEXT_TERMINATED])
        group.create_dataset("truncations", data=episode.columns[NEXT_TRUNCATED])
        if not self.episodes:
            for path, column in columns.items():
                self.spaces.setdefault(path[0], {})[path[1:]] = box_of(column)
        self.steps += len(episode)
        self.episodes += 1

    def _actions(self, episode: Episode) -> dict[KeyPath, Array]:
        found: dict[KeyPath, Array] = {}
        for path, column in written_columns(episode).items():
            if path[0] == "action":
                found["actions", *path[1:]] = column
            elif path != ("episode",):
                self.left_out.add(key_text(path))
        return found

    def metadata(
        self, dataset_id: str, seen: Any, action: Any, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The description of what was written."""
        if not self.episodes:
            raise ValueError("there is no step to be written.")
        if self.left_out:
            warnings.warn(
                f"{sorted(self.left_out)} have no place in a dataset of Minari and were left out.",
                stacklevel=3,
            )
        spaces = {
            "observation_space": seen or nested(self.spaces.get("observations", {})),
            "action_space": action or nested(self.spaces.get("actions", {})),
        }
        return {
            "code_permalink": None,
            "author": [],
            "author_email": [],
            "algorithm_name": None,
            **{name: json.dumps(plain_space(space)) for name, space in spaces.items()},
            "minari_version": MINARI_VERSION,
            **given,
            "dataset_id": dataset_id,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "total_episodes": self.episodes,
            "total_steps": self.steps,
        }


def _placed(observations: Mapping[KeyPath, Array]) -> dict[KeyPath, Array]:
    """Where observations go in the group of an episode."""
    found: dict[KeyPath, Array] = {}
    others = any(path[0] not in ("observation", "info") for path in observations)
    for path, column in observations.items():
        if path[0] == "info":
            found["infos", *path[1:]] = column
        elif others:
            found["observations", *path] = column
        else:
            found["observations", *path[1:]] = column
    return found
