"""The files of a mapped storage in its folder, and the settings stored with them."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_replay.data.structure import Structure
from rl_replay.shared.files import FileSource, SharedFiles
from rl_slabs import LazyFile, Slab
from rl_slabs.internals import open_regular
from rl_tensordict import NestedKey, as_key, as_tuple

ROWS_FILE = "rows.slab"
SIDE_FILE = "side.slab"
TABLES_FILE = "tables.slab"
SETTINGS_FILE = "settings.json"
"""There until the first rows come, which say the same."""

_SETTINGS_LIMIT = 1 << 16


@dataclass(frozen=True)
class StoredSettings:
    """The constructor arguments of a storage, read from its folder."""

    files: SharedFiles  # The files, open
    capacity: int  # How many rows
    lanes: int  # In how many lanes
    ndim: int  # Its dimensions
    dim_extend: int  # Along which it grows
    lossless: bool | list[NestedKey]  # The observations that are kept once

    @classmethod
    def of(cls, folder: Path) -> StoredSettings:
        """Open the files of a folder."""
        for name in (ROWS_FILE, TABLES_FILE):
            if not (folder / name).exists():
                raise FileNotFoundError(
                    f"{folder} holds no storage to open: {name} is missing. Give the scratch_dir "
                    "of a LazyMemmapStorage."
                )
        file = LazyFile.open(folder / ROWS_FILE)
        settings = None if file.filled else _settings(folder)  # gone once the rows are there
        if file.filled:
            slab = Slab.over(file)
            about = _about(slab.about, folder)
            Structure.from_plain(about["structure"]).require_classes()
            size, lossless = (slab.capacity, slab.lanes, 1 + len(about["columns"])), about["once"]
        elif settings is not None:
            about, lossless = settings, settings["lossless"]
            size = settings["capacity"], settings["lanes"], settings["ndim"]
        else:
            raise ValueError(f"nothing was written to {folder} yet: extend its buffer first.")
        side = folder / SIDE_FILE if lossless else None
        files = SharedFiles.opened(folder / ROWS_FILE, side, folder / TABLES_FILE, size[1])
        once = lossless if isinstance(lossless, bool) else [as_key(tuple(key)) for key in lossless]
        return cls(files, *size, about["dim_extend"], once)


class TemporaryFiles(FileSource):
    """Files on the disk that are gone with the last process that has them."""

    def files(self, lanes: int, suffix: str = "") -> SharedFiles:
        """New files; the rows in one on the disk, the rest in memory."""
        del suffix
        name = Path(tempfile.gettempdir(), f"rl-replay-{uuid.uuid4().hex}-{ROWS_FILE}")
        files = SharedFiles.on_disk(name, None, None, lanes)
        name.unlink()  # the open file lives on without its name
        return files


class FolderFiles(FileSource):
    """Files in a folder, which any process may open by its path."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        self.folder = folder
        self.settings = dict(settings)  # what there is to say before the first rows say it
        self._overwrite = overwrite

    def files(self, lanes: int, suffix: str = "") -> SharedFiles:
        """New files; with a suffix, alongside the files in use."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not suffix and self._overwrite:
            self.discard()
        self._overwrite = True  # from now on the files are its own
        rows, side, tables = self._names(suffix)
        once = side if self.settings["lossless"] else None
        try:
            files = SharedFiles.on_disk(rows, once, tables, lanes)
        except FileExistsError as error:
            reason = (
                f"{error.filename} is there already: LazyMemmapStorage.open(scratch_dir) opens it "
                "with its rows, existsok=True replaces it"
            )
            raise FileExistsError(error.errno, reason, error.filename) from None
        if not suffix:
            self.tell(lanes=lanes)
        return files

    def tell(self, **settings: Any) -> None:
        """Writes the settings of files without rows, for processes that open them."""
        self.settings |= settings
        lossless = self.settings["lossless"]
        keys = lossless if isinstance(lossless, bool) else [list(as_tuple(key)) for key in lossless]
        made = self.folder / f"{SETTINGS_FILE}.{os.getpid()}"
        made.write_text(json.dumps({**self.settings, "lossless": keys}), encoding="utf-8")
        made.replace(self.folder / SETTINGS_FILE)

    def commit(self, suffix: str) -> None:
        """Renames files with a suffix to the names of the files that they replace."""
        for name, made in zip(self._names(""), self._names(suffix), strict=True):
            if made.exists():
                made.replace(name)

    def discard(self, suffix: str = "") -> bool:
        """Removes unused files."""
        for name in self._names(suffix):
            name.unlink(missing_ok=True)
        if not suffix:
            self.describe()
        return True

    def describe(self) -> None:
        """Removes the settings: the rows exist now, and describe themselves."""
        (self.folder / SETTINGS_FILE).unlink(missing_ok=True)

    def _names(self, suffix: str) -> list[Path]:
        return [self.folder / (name + suffix) for name in (ROWS_FILE, SIDE_FILE, TABLES_FILE)]


def _settings(folder: Path) -> dict[str, Any] | None:
    """Reads and validates what `FolderFiles.tell` wrote; None if the file is absent."""
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
