"""OGBench: trajectories for goals, in npz files, one row more than steps each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.download import fetch
from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.flat_columns import bounds_of, only_file
from rl_datasets.npz_file import open_npz
from rl_datasets.paths import PathName
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_layout.keys import NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.arguments import check_choice
from rl_tensordict.types import Array, KeyPath

ADDRESS = "https://rail.eecs.berkeley.edu/datasets/ogbench"
_STATES = ("qpos", "qvel", "button_states")  # of the simulator, at each observation


class OGBenchSource(CountedFiles):
    """Trajectories of T steps in T + 1 rows, the last of which `terminals` marks.

    The action of that row is a dummy, and the mark says that the data end there, not the task: the
    steps are neither terminated nor truncated. There are no rewards.

    Args:
        path: The file, or a folder with one.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A damaged file, or columns of different lengths.
    """

    format = "ogbench npz"

    def __init__(self, path: PathName) -> None:
        self.path = only_file(path, "*.npz")
        super().__init__([self.path])
        with open_npz(self.path) as file:
            ends = file["terminals"].astype(bool)
            self._states = [name for name in _STATES if name in file]
            for name in ("observations", "actions", *self._states):
                if file.rows(name) != len(ends):
                    raise ValueError(
                        f"{self.path}: column {name!r} has {file.rows(name)} rows, 'terminals' has "
                        f"{len(ends)}."
                    )
        self._bounds = bounds_of(ends)
        # a row less for each trajectory
        self._steps = int(np.maximum(np.diff(self._bounds) - 1, 0).sum())
        self.assumptions += [
            "`terminals` mark the end of the data, not of the task: no flag is set",
            "there are no rewards in the file: they depend on the goal",
        ]

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The trajectories in the order of the file."""
        with open_npz(self.path) as file, ExitStack() as stack:
            streams = {
                name: stack.enter_context(file.stream(name))
                for name in ("observations", "actions", *self._states)
            }
            for number, rows in enumerate(np.diff(self._bounds).tolist()):
                found = {name: stream.read(rows) for name, stream in streams.items()}
                if number >= first:
                    yield self._episode(found, number)

    def _episode(self, rows: dict[str, Array], number: int) -> Episode:
        steps = len(rows["actions"]) - 1
        seen: dict[KeyPath, Array] = {("observation",): rows["observations"]}
        seen |= {("info", name): rows[name] for name in self._states}
        flags = np.zeros(steps, bool)
        columns: dict[KeyPath, Array] = {
            ("action",): rows["actions"][:-1],
            NEXT_TERMINATED: flags,
            NEXT_TRUNCATED: flags,
        }
        return Episode(seen, columns, f"{self.path}, row {self._bounds[number]}", number)


class OGBenchExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of OGBench: observations and actions of trajectories, without rewards.

    Relabel with goals, as `HindsightStrategy` of rl-transforms does, or compute rewards with
    `preprocess`.

    Args:
        dataset_id: As OGBench names it, `"antmaze-large-navigate-v0"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        split: "train" or "val".
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: Another split, or a damaged file.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> OGBenchExperienceReplay("antmaze-large-navigate-v0", split="test")
        Traceback (most recent call last):
        ValueError: split: expected 'train' or 'val', got 'test' (str).
    """

    family = "ogbench"
    sources_of_copies = "Where the servers are down, copies are named in its repository."

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        split: str = "train",
        **options: Any,
    ) -> None:
        check_choice("split", split, ["train", "val"])
        name = f"{dataset_id}-val" if split == "val" else dataset_id
        super().__init__(name, batch_size, **options)

    def source(self, path: Path) -> EpisodeSource:
        """The trajectories of a file."""
        return OGBenchSource(path)

    def fetch(self, folder: Path) -> None:
        """Download the file."""
        fetch(f"{ADDRESS}/{self.dataset_id}.npz", folder / f"{self.dataset_id}.npz")
