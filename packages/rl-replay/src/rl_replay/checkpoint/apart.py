"""Dumps whose rows a checkpointer of the user's keeps in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rl_replay.checkpoint.parts import Folder
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.writer import dump
from rl_replay.storages import Storage
from rl_replay.storages.checkpointer import Checkpointer

_NAME = "storage/folder"


def dump_apart(
    storage: Storage, checkpointer: Checkpointer, path: str, parts: Mapping[str, Any]
) -> None:
    """Lets a checkpointer write the rows, then writes the other parts, which name the folder."""
    rows = Folder(partial(checkpointer.dumps, storage))
    dump(path, {"storage": {"folder": rows}, **parts})


def is_apart(archive: Archive) -> bool:
    """Whether the rows of a dump are in a folder of their own."""
    return _NAME in archive.names()


def load_apart(storage: Storage, archive: Archive) -> None:
    """Lets the checkpointer of a storage restore the rows that one like it wrote."""
    folder = archive.folder_of(_NAME)
    checkpointer = storage.checkpointer
    if checkpointer is None or checkpointer.is_own:
        raise ValueError(
            f"the rows of {archive.folder} were written by a checkpointer of their own: give the "
            "storage one like it, storage.checkpointer = ..."
        )
    checkpointer.loads(storage, folder)
