"""Folders with arrays, a document, and the rows of a storage, replaced as a whole."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_replay import ReplayBuffer, Storage

DOCUMENT = "document.json"


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
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"data-{uuid.uuid4().hex}"
    data.mkdir()
    try:
        for name, array in arrays.items():
            np.save(data / f"{name}.npy", array, allow_pickle=False)
        if storage is not None and len(storage):
            ReplayBuffer(storage=storage).dumps(data / "rows")
        whole = {"kind": kind, "data": data.name, "arrays": sorted(arrays), **document}
        (data / DOCUMENT).write_text(json.dumps(whole), encoding="utf-8")
        (data / DOCUMENT).replace(folder / DOCUMENT)  # from here on the new data are the ones
    except BaseException:
        if not _is_named(folder, data.name):  # an interrupt behind the last step undoes nothing
            shutil.rmtree(data, ignore_errors=True)
        raise
    for other in folder.glob("data-*"):
        if other != data:
            shutil.rmtree(other, ignore_errors=True)


def read_dump(path: str | os.PathLike[str], kind: str) -> Dump:
    """Reads a folder that `write_dump` wrote."""
    folder = Path(path)
    try:
        document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no dump: there is no {DOCUMENT}.") from None
    except ValueError as error:
        raise ValueError(f"{folder / DOCUMENT} is damaged: {error}.") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        held = document.get("kind") if isinstance(document, dict) else document
        raise ValueError(f"{folder} holds {held!r}, and {kind!r} is wanted.")
    data, names = document.get("data"), document.get("arrays")
    if not isinstance(data, str) or Path(data).name != data or not isinstance(names, list):
        raise ValueError(f"{folder / DOCUMENT} was altered: it names no folder of data.")
    arrays = {name: _array(folder / data, name) for name in names}
    rows = folder / data / "rows"
    return Dump(document, arrays, rows if rows.exists() else None)


def load_rows(storage: Storage, rows: Path | None) -> None:
    """Replaces the rows of a storage with those of a dump."""
    if rows is None:
        storage.empty()
    else:
        ReplayBuffer(storage=storage).loads(rows, rows_only=True)


def _is_named(folder: Path, data: str) -> bool:
    """Whether the document of a folder names some data."""
    try:
        return data in (folder / DOCUMENT).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _array(data: Path, name: Any) -> NDArray[Any]:
    """An array of a dump; pickles in it are refused."""
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"{data.parent / DOCUMENT} was altered: {name!r} is no name of an array.")
    try:
        array: NDArray[Any] = np.load(data / f"{name}.npy", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{data / name}.npy is damaged, or missing: {error}.") from error
    return array
