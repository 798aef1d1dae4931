"""V-D4RL: frames of continuous control, of 64 pixels in npz files or of 84 in HDF5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.download import HubDataset
from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.flat_columns import bounds_of, parts, require_length
from rl_datasets.hdf5_file import damaged, open_h5
from rl_datasets.npz_file import open_npz
from rl_datasets.paths import PathName, path_of
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_flags, check_type, check_whole
from rl_tensordict.types import Array, KeyPath
from rl_transforms import Compose, Resize, ToTensorImage, Transform, as_transform

_FIRST, _LAST = 0, 2  # of `step_type`
_NOTE = "the last step is terminated where the discount is 0, else truncated"


class VD4RLSource(CountedFiles):
    """Episodes of T steps in T + 1 rows, of which the first holds what a reset gave.

    Action and reward of row t led to the frame of row t: transition t is (frame t - 1, action t,
    reward t, frame t). So every last frame is there.

    Args:
        folder: A folder with `.npz` or `.hdf5` files, or one such file.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: Both kinds of files, a damaged file, or columns of different lengths.
    """

    format = "v-d4rl"

    def __init__(self, folder: PathName) -> None:
        folder = path_of(folder)
        found = {
            kind: [folder] if folder.suffix == kind else sorted(folder.rglob(f"*{kind}"))
            for kind in (".npz", ".hdf5")
        }
        if not any(found.values()):
            raise FileNotFoundError(f"there are no .npz and no .hdf5 files in {folder}.")
        if all(found.values()):
            raise ValueError(f"{folder} has .npz and .hdf5 files: give the folder of one size.")
        super().__init__(found[".npz"] or found[".hdf5"])
        self._read = _of_npz if found[".npz"] else _of_hdf5
        self._steps = sum(_steps_of(path) for path in self._files)
        self.assumptions.append(_NOTE)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes, file by file."""
        number = 0
        for path in self._files:
            for row, rows in self._read(path):
                if number >= first:
                    yield _episode(rows, f"{path}, row {row}", number)
                number += 1


class VD4RLExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of V-D4RL, in which each action is stored with the frame that it led from.

    Rows have `"pixels"`, `"action"`, and under `"next"` pixels, reward, `"discount"` and flags.

    Args:
        dataset_id: Its folder, `"main/walker_walk/random/64px"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        totensor: Samples have pixels as float32 `[C, H, W]` between 0 and 1; else as the files do.
        image_size: Resize them to this, or to (width, height); needs `totensor`.
        num_workers: No effect.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: A size without `totensor`, or a damaged file.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> VD4RLExperienceReplay("main/x/64px", image_size=32, totensor=False)
        Traceback (most recent call last):
        ValueError: image_size resizes float images: leave totensor=False out.
    """

    family = "vd4rl"
    sources_of_copies = "Its datasets are on https://huggingface.co/datasets/conglu/vd4rl."

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        totensor: bool = True,
        image_size: int | Sequence[int] | None = None,
        num_workers: int = 0,
        transform: Any = None,
        **options: Any,
    ) -> None:
        del num_workers
        check_flags(totensor=totensor)
        sides = (image_size,) if isinstance(image_size, int) else image_size
        if sides is not None:
            check_type("image_size", sides, Sequence, "a side, or width and height")
            for side in sides:
                check_whole("image_size", side, 1)
            if len(sides) > 2 or not sides:
                raise ValueError(f"image_size: expected a side, or two, got {image_size}.")
        if image_size is not None and not totensor:
            raise ValueError("image_size resizes float images: leave totensor=False out.")
        keys: list[NestedKey] = ["pixels", ("next", "pixels")]
        chain: list[Transform] = []
        if totensor:
            chain.append(ToTensorImage(in_keys=keys, shape_tolerant=True))
        if sides is not None:
            width, height = sides[0], sides[-1]
            chain.append(Resize(width, height, in_keys=keys))
        if transform is not None:
            chain.append(as_transform(transform))
        super().__init__(
            dataset_id, batch_size, transform=Compose(*chain) if chain else None, **options
        )

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a folder."""
        return VD4RLSource(path)

    def fetch(self, folder: Path) -> None:
        """Download the folder of the dataset from the hub."""
        suffix = ".hdf5" if self.dataset_id.endswith("84px") else ".npz"
        HubDataset("conglu/vd4rl").fetch_folder(folder, f"vd4rl/{self.dataset_id}", suffix)


def _episode(rows: Mapping[str, Array], place: str, number: int) -> Episode:
    """Transitions of the rows of one episode, of which the first has no action."""
    is_last = np.zeros(len(rows["reward"]), bool)
    is_last[-1] = True
    terminal = rows.get("is_terminal", (rows["discount"] == 0) & is_last).astype(bool)
    columns: dict[KeyPath, Array] = {
        ("action",): rows["action"][1:],
        NEXT_REWARD: rows["reward"][1:],
        ("next", "discount"): rows["discount"][1:],
        NEXT_TERMINATED: terminal[1:],
        NEXT_TRUNCATED: (is_last & ~terminal)[1:],
    }
    return Episode({("pixels",): rows["pixels"]}, columns, place, number)


def _of_npz(path: Path) -> Iterator[tuple[int, dict[str, Array]]]:
    """The only episode of a file."""
    with open_npz(path) as file:
        rows = {name: file[name] for name in ("action", "reward", "discount")}
        rows["pixels"] = file["image" if "image" in file else "observation"]
        if "is_terminal" in file:
            rows["is_terminal"] = file["is_terminal"]
    require_length(rows, len(rows["reward"]), "reward", path)
    yield 0, rows


def _of_hdf5(path: Path) -> Iterator[tuple[int, dict[str, Array]]]:
    """The episodes of a file, which begin at the first rows that `step_type` marks."""
    with open_h5(path) as file:
        try:
            columns = {name: file[name] for name in ("action", "reward", "discount")}
            columns["pixels"] = file["observation"]
            kinds = file["step_type"][:].reshape(-1)
        except KeyError as error:
            raise ValueError(f"{path}: {error.args[0]}") from error
        require_length(columns, len(kinds), "step_type", path)
        ends = np.append(kinds[1:] == _FIRST, True) | (kinds == _LAST)
        try:
            for row, rows in parts(columns, bounds_of(ends)):
                flat = {
                    n: a.reshape(-1) if n in ("reward", "discount") else a for n, a in rows.items()
                }
                yield row, flat
        except OSError as error:
            raise damaged(path, error) from error


def _steps_of(path: Path) -> int:
    """How many transitions a file has."""
    if path.suffix == ".npz":
        with open_npz(path) as file:
            return max(0, file.rows("reward") - 1)
    with open_h5(path) as file:
        return int(file["reward"].shape[0])  # at most
