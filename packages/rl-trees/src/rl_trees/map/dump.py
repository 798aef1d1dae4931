"""Folders with arrays, a document, and the rows of a storage, replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from rl_replay import ReplayBuffer, Storage
from rl_replay.checkpoint import Folder, Part, dump, load


class Dump(NamedTuple):
    """What a folder holds."""

    document: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    rows: Path | None  # where `load_rows` finds the rows of the storage


def write_dump(
    path: str | os.PathLike[str],
    kind: str,
    document: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    storage: Storage | None,
) -> None:
    """Writes a folder; one that is there is valid until the new one is complete."""
    parts: dict[str, Part] = {"kind": kind, "document": [document], "arrays": arrays}
    if storage is not None and len(storage):
        parts["rows"] = Folder(ReplayBuffer(storage=storage).dumps)
    dump(path, parts)


def read_dump(path: str | os.PathLike[str], kind: str) -> Dump:
    """Reads a folder that `write_dump` wrote."""
    found = load(path)
    if found.get("kind") != kind:
        raise ValueError(f"{path} holds {found.get('kind')!r}, and {kind!r} is wanted.")
    (document,) = found["document"]  # in a list, so that it comes back as it was
    return Dump(document, found["arrays"], found.get("rows"))


def load_rows(storage: Storage, rows: Path | None) -> None:
    """Replaces the rows of a storage with those of a dump."""
    if rows is None:
        storage.empty()
    else:
        ReplayBuffer(storage=storage).loads(rows, rows_only=True)
