"""The files of a mapped storage in its folder: their names, and what they say of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_layout.keys import NestedKey, as_key
from rl_replay.data.structure import Structure
from rl_replay.shared.files import SharedFiles
from rl_slabs import LazySlab

ROWS_FILE = "rows.slab"
SIDE_FILE = "side.slab"
TABLES_FILE = "tables.slab"


@dataclass(frozen=True)
class FolderStorage:
    """How the storage was made whose files lie in a folder.

    Attributes:
        files: The files, open.
        capacity: How many rows.
        lanes: In how many lanes.
        ndim: Its dimensions.
        dim_extend: Along which it grows.
        lossless: The observations that are kept once.
    """

    files: SharedFiles
    capacity: int
    lanes: int
    ndim: int
    dim_extend: int
    lossless: list[NestedKey]

    @classmethod
    def of(cls, folder: Path) -> FolderStorage:
        """Open the files of a folder.

        Raises:
            FileNotFoundError: There are no such files.
            ValueError: Nothing was written yet, the files are damaged, or their rows are of a class
                that this process does not know.
        """
        for name in (ROWS_FILE, TABLES_FILE):
            if not (folder / name).exists():
                raise FileNotFoundError(
                    f"{folder} holds no storage to open: {name} is missing. Give the scratch_dir "
                    "of a LazyMemmapStorage."
                )
        slab = LazySlab.open(folder / ROWS_FILE).get()
        if slab is None:
            raise ValueError(f"nothing was written to {folder} yet: extend its buffer first.")
        about = _about(slab.about, folder)
        Structure.from_plain(about["structure"]).require_classes()
        side = folder / SIDE_FILE if about["once"] else None
        files = SharedFiles.opened(folder / ROWS_FILE, side, folder / TABLES_FILE, slab.lanes)
        once = [as_key(tuple(key)) for key in about["once"]]
        ndim = 1 + len(about["columns"])
        return cls(files, slab.capacity, slab.lanes, ndim, about["dim_extend"], once)


def _about(text: str, folder: Path) -> dict[str, Any]:
    """What the maker of rows wrote beside them, of the form that it has."""
    try:
        about = json.loads(text)
        columns, once = list(about["columns"]), list(about["once"])
        sound = all(isinstance(n, int) and n > 0 for n in columns) and len(columns) < 3
        sound &= all(isinstance(name, str) for key in once for name in key)
        sound &= about["dim_extend"] in range(1 + len(columns)) and "structure" in about
    except (ValueError, TypeError, KeyError):
        sound = False
    if not sound:
        raise ValueError(f"{folder / ROWS_FILE} does not say what its rows are: restore it.")
    return dict(about)
