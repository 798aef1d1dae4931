"""RoboSet: demonstrations of a simulated kitchen, trials in HDF5 files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_datasets.download import HubDataset
from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.hdf5_file import damaged, is_number, leaves, open_h5
from rl_datasets.paths import PathName, path_of
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath

if TYPE_CHECKING:
    import h5py

_KNOWN: dict[str, KeyPath] = {
    "observations": ("observation",),
    "actions": ("action",),
    "rewards": NEXT_REWARD,
    "done": NEXT_TRUNCATED,
}


class RobosetSource(CountedFiles):
    """Trials of T rows, whose last next observation is not in the file.

    A file says only that a trial is done, which is by time: it is taken for truncated.

    Args:
        folder: A folder with `.h5` files, or one such file.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: A damaged file, or columns of different lengths.
    """

    format = "roboset hdf5"

    def __init__(self, folder: PathName) -> None:
        folder = path_of(folder)
        # one for each seed
        super().__init__([folder] if folder.is_file() else sorted(folder.rglob("*.h5")))
        if not self._files:
            raise FileNotFoundError(f"there are no .h5 files in {folder}.")
        for path in self._files:
            with open_h5(path) as file:
                self._steps += sum(len(file[name]["rewards"]) for name in _trials(file))
        self.assumptions.append("`done` ends a trial by time: it is taken for truncated")

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The trials by number, file by file."""
        number = 0
        for seed, path in enumerate(self._files):
            with open_h5(path) as file:
                for name in _trials(file):
                    if number >= first:
                        try:
                            rows = self._rows(file[name])
                        except OSError as error:
                            raise damaged(path, error, name) from error
                        yield _episode(rows, seed, f"{path}, {name}", number)
                    number += 1

    def _rows(self, group: h5py.Group) -> dict[KeyPath, Array]:
        """The columns of a trial; notes what is left out."""
        found: dict[KeyPath, Array] = {}
        steps = len(group["rewards"])
        for path, dataset in leaves(group):
            known = path[0] in _KNOWN
            if not is_number(dataset.dtype):
                self.left_out["/".join(path)] = f"{dataset.dtype} is no number"
            elif not known and (not dataset.shape or dataset.shape[0] != steps):
                self.left_out["/".join(path)] = f"{list(dataset.shape)} is no row for each step"
            else:
                head = _KNOWN.get(path[0], ("info",) if path[0] == "env_infos" else (path[0],))
                found[(*head, *path[1:])] = dataset[()]
        return found


class RobosetExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of RoboSet.

    Rows have `"observation"`, `"action"`, reward and flags under `"next"`, `"seed"`, which is the
    number of the file, and `"info"` as the environment gave it.

    Args:
        dataset_id: Its folder, `"DAPG(expert)/door_v2d-v1"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: A damaged file.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> RobosetExperienceReplay("DAPG(expert)/door_v2d-v1", path="nowhere")
        Traceback (most recent call last):
        FileNotFoundError: there is nothing at nowhere.
    """

    family = "roboset"
    sources_of_copies = "Its datasets are on https://huggingface.co/datasets/jdvakil/RoboSet_Sim."

    def source(self, path: Path) -> EpisodeSource:
        """The trials of a folder."""
        return RobosetSource(path)

    def fetch(self, folder: Path) -> None:
        """Download the files from the hub."""
        HubDataset("jdvakil/RoboSet_Sim").fetch_folder(folder, self.dataset_id, ".h5")


def _trials(file: h5py.File) -> list[str]:
    numbers = [re.fullmatch(r"Trial(\d+)", name) for name in file]
    return [match[0] for match in sorted((m for m in numbers if m), key=lambda m: int(m[1]))]


def _episode(rows: dict[KeyPath, Array], seed: int, place: str, number: int) -> Episode:
    seen = {key: rows.pop(key) for key in list(rows) if key[0] == "observation"}
    steps = len(rows[NEXT_REWARD])
    rows[NEXT_TRUNCATED] = rows.get(NEXT_TRUNCATED, np.zeros(steps)).reshape(steps, -1)[:, 0] > 0
    rows[NEXT_TERMINATED] = np.zeros(steps, bool)
    rows["seed",] = np.full(steps, seed)
    return Episode(seen, rows, place, number)
