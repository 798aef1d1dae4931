"""Episodes of Minari in HDF5: a group each, with one observation more than steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rl_datasets.episodes import Episode
from rl_datasets.hdf5_file import (
    ColumnReader,
    GroupReader,
    damaged,
    is_number,
    leaves,
    open_h5,
)
from rl_datasets.minari.source import (
    STEP_COLUMNS,
    MinariSource,
    data_folder,
    decode_images,
)
from rl_datasets.paths import PathName
from rl_layout.keys import NEXT, NEXT_REWARD
from rl_tensordict.types import Array, KeyPath

if TYPE_CHECKING:
    import h5py

MAIN_FILE = "main_data.hdf5"


class MinariHDF5Source(MinariSource):
    """Episodes of `data/main_data.hdf5`, described by `data/metadata.json`.

    Each episode of T steps has T + 1 observations, and T + 1 infos where these are kept: the first
    of them came with the reset. So every last observation is there.

    Args:
        folder: The folder of the dataset, or its `data` folder.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The metadata or the file are damaged.
    """

    format = "minari hdf5"

    def __init__(self, folder: PathName) -> None:
        data = data_folder(folder)
        self.path = data / MAIN_FILE
        if not self.path.exists():
            raise FileNotFoundError(f"there is no {MAIN_FILE} in {data}.")
        super().__init__(data)
        self._files = [self.path, *self._files]

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes by number."""
        with open_h5(self.path) as file:
            names = _episode_names(file)
            groups = GroupReader(file, self.path, [name for _, name in names])
            seen: dict[KeyPath, ColumnReader] = {}
            columns: dict[KeyPath, ColumnReader] = {}
            for place, (number, name) in enumerate(names[first:], first):
                try:
                    if not columns:
                        seen, columns = self._columns(file[names[0][1]])
                    found = groups.read(place, seen | columns)
                    for key in self.images & set(found):
                        found[key] = decode_images(found[key])
                except (OSError, RuntimeError, KeyError) as error:
                    raise damaged(self.path, error, name) from error
                rest = {key: found.pop(key) for key in columns}
                yield _episode(found, rest, f"{self.path}, {name}", number)

    def _columns(
        self, group: h5py.Group
    ) -> tuple[dict[KeyPath, ColumnReader], dict[KeyPath, ColumnReader]]:
        """Readers of observations and infos, and of everything else."""
        seen, columns = {}, {}
        for path, dataset in leaves(group):
            reader = ColumnReader(path, dataset)
            key = _key_of(path)
            if not is_number(dataset.dtype) and key not in self.images:
                self.left_out["/".join(path)] = f"{dataset.dtype} is no number"
            elif path[0] in ("observations", "infos"):
                seen[key] = reader
            else:
                columns[key] = reader
        return seen, columns


def _episode(
    seen: dict[KeyPath, Array], columns: dict[KeyPath, Array], place: str, number: int
) -> Episode:
    """An episode; infos that are as many as its steps came with the steps."""
    steps = len(columns[NEXT_REWARD]) if NEXT_REWARD in columns else 0
    for key in [key for key in seen if key[0] == "info" and len(seen[key]) == steps]:
        columns[NEXT, *key] = seen.pop(key)
    return Episode(seen, columns, place, number)


def _key_of(path: KeyPath) -> KeyPath:
    head, *rest = path
    if head in STEP_COLUMNS and not rest:
        return STEP_COLUMNS[head]
    return (
        {"observations": "observation", "actions": "action", "infos": "info"}.get(head, head),
        *rest,
    )


def _episode_names(file: h5py.File) -> list[tuple[int, str]]:
    matches = [re.fullmatch(r"episode_(\d+)", name) for name in file]
    return sorted((int(match[1]), match[0]) for match in matches if match is not None)
