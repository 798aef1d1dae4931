"""Dumps whose rows a checkpointer of the user's keeps in a folder of its own."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.writer import dump
from rl_replay.storages import Storage
from rl_replay.storages.checkpointer import Checkpointer

_FOLDER = "storage-"
_NAME = "storage/folder"


def dump_apart(
    storage: Storage, checkpointer: Checkpointer, path: str, parts: Mapping[str, Any]
) -> None:
    """Lets a checkpointer write the rows, then writes the other parts, which name the folder."""
    folder, name = Path(path), f"{_FOLDER}{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        checkpointer.dumps(storage, folder / name)
        dump(folder, {"storage": {"folder": name}, **parts})
    except BaseException:
        shutil.rmtree(folder / name, ignore_errors=True)
        raise
    for other in folder.glob(f"{_FOLDER}*"):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)


def is_apart(archive: Archive) -> bool:
    """Whether the rows of a dump are in a folder of their own."""
    return _NAME in archive.names()


def load_apart(storage: Storage, archive: Archive) -> None:
    """Lets the checkpointer of a storage restore the rows that one like it wrote."""
    name = archive.part(_NAME)
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"{archive.folder} names the folder {name!r}. Restore it from a copy.")
    checkpointer = storage.checkpointer
    if checkpointer is None or checkpointer.is_own:
        raise ValueError(
            f"the rows of {archive.folder} were written by a checkpointer of their own: give the "
            "storage one like it, storage.checkpointer = ..."
        )
    checkpointer.loads(storage, archive.folder / name)
