"""The files of a mapped storage in its folder, and the settings stored with them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_replay.data.structure import Structure
from rl_replay.shared.files import SharedFiles
from rl_slabs import LazySlab
from rl_slabs.internals import open_regular
from rl_tensordict import NestedKey, as_key, as_tuple

ROWS_FILE = "rows.slab"
SIDE_FILE = "side.slab"
TABLES_FILE = "tables.slab"
SETTINGS_FILE = "settings.json"
"""There until the first rows come, which say the same."""

_SETTINGS_LIMIT = 1 << 16


@dataclass(frozen=True)
class FolderStorage:
    """The constructor arguments of a storage, read from its folder."""

    files: SharedFiles  # The files, open
    capacity: int  # How many rows
    lanes: int  # In how many lanes
    ndim: int  # Its dimensions
    dim_extend: int  # Along which it grows
    lossless: bool | list[NestedKey]  # The observations that are kept once

    @classmethod
    def of(cls, folder: Path) -> FolderStorage:
        """Open the files of a folder."""
        for name in (ROWS_FILE, TABLES_FILE):
            if not (folder / name).exists():
                raise FileNotFoundError(
                    f"{folder} holds no storage to open: {name} is missing. Give the scratch_dir "
                    "of a LazyMemmapStorage."
                )
        handle = LazySlab.open(folder / ROWS_FILE)
        settings = None if handle.get() else _settings(folder)  # gone once the rows are there
        slab = handle.get()
        if slab is None and settings is None:
            raise ValueError(f"nothing was written to {folder} yet: extend its buffer first.")
        if slab is None:
            return cls._to_come(folder, dict(settings or {}))
        about = _about(slab.about, folder)
        Structure.from_plain(about["structure"]).require_classes()
        side = folder / SIDE_FILE if about["once"] else None
        files = SharedFiles.opened(folder / ROWS_FILE, side, folder / TABLES_FILE, slab.lanes)
        once = [as_key(tuple(key)) for key in about["once"]]
        ndim = 1 + len(about["columns"])
        return cls(files, slab.capacity, slab.lanes, ndim, about["dim_extend"], once)

    @classmethod
    def _to_come(cls, folder: Path, settings: dict[str, Any]) -> FolderStorage:
        """The storage of files without rows."""
        lossless, lanes = settings["lossless"], settings["lanes"]
        side = folder / SIDE_FILE if lossless else None
        files = SharedFiles.opened(folder / ROWS_FILE, side, folder / TABLES_FILE, lanes)
        once = lossless if isinstance(lossless, bool) else [as_key(tuple(key)) for key in lossless]
        return cls(
            files, settings["capacity"], lanes, settings["ndim"], settings["dim_extend"], once
        )


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Writes how a storage without rows was made, for processes that open its path."""
    lossless = settings["lossless"]
    keys = lossless if isinstance(lossless, bool) else [list(as_tuple(key)) for key in lossless]
    made = folder / f"{SETTINGS_FILE}.{os.getpid()}"
    made.write_text(json.dumps({**settings, "lossless": keys}), encoding="utf-8")
    made.replace(folder / SETTINGS_FILE)


def _settings(folder: Path) -> dict[str, Any] | None:
    """Reads and validates what `write_settings` wrote; None if the file is absent."""
    try:
        descriptor = open_regular(folder / SETTINGS_FILE, os.O_RDONLY, follow=False)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(_SETTINGS_LIMIT)
    try:
        found = dict(json.loads(text))
        numbers = [found[name] for name in ("capacity", "lanes", "ndim")]
        sound = all(type(n) is int and n > 0 for n in numbers)
        sound &= type(found["dim_extend"]) is int and 0 <= found["dim_extend"] < found["ndim"]
        once = [] if isinstance(found["lossless"], bool) else list(found["lossless"])
        sound &= all(key and all(isinstance(name, str) for name in key) for key in once)
    except (ValueError, TypeError, KeyError, UnicodeDecodeError):
        sound = False
    if not sound:
        raise ValueError(f"{folder / SETTINGS_FILE} does not say how its storage was made.")
    return found


def _about(text: str, folder: Path) -> dict[str, Any]:
    """Parses and validates the description that is stored with the rows."""
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
