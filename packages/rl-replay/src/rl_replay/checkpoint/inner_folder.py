"""Folders within a dump: each dump fills new ones, which its manifest then names."""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from pathlib import Path
from typing import Any

_NAME = re.compile(r"folder-[0-9a-f]{32}")


def new_name() -> str:
    """The name of a folder that no dump has yet."""
    return f"folder-{uuid.uuid4().hex}"


def is_name(name: str) -> bool:
    """Whether `new_name` makes such names; what else begins like that is not ours to remove."""
    return _NAME.fullmatch(name) is not None


def described_folder(path: Path) -> dict[str, Any]:
    """What a manifest says of a folder, once all that is in it is on the disk."""
    path.mkdir(exist_ok=True)  # a writer without files has made none
    for place, _, files in os.walk(path):
        for file in files:
            name = os.path.join(place, file)
            if stat.S_ISREG(os.lstat(name).st_mode):
                synced(name, os.O_RDONLY)
        synced(place, os.O_RDONLY | os.O_DIRECTORY)
    return {"folder": path.name}


def synced(name: str | os.PathLike[str], flags: int) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(name, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_folder(value: object) -> bool:
    """Whether a plain value of a manifest describes a folder."""
    return isinstance(value, dict) and set(value) == {"folder"}


def named_folder(dump: Path, value: Any) -> Path:
    """The folder that a manifest describes, which must be within the dump and no link."""
    name = value["folder"] if is_folder(value) else value
    if value is name or not isinstance(name, str) or not is_name(name):
        raise ValueError(f"{dump} names the folder {name!r}. Restore it from a copy.")
    return own_folder(dump / name)


def own_folder(path: Path) -> Path:
    """What is at a path itself, and not by a link; else a `ValueError`."""
    if path.is_symlink() or not path.exists():
        raise ValueError(f"{path} is missing, or is a link. Restore it from a copy.")
    return path


def remove(paths: list[Path]) -> None:
    """Removes files and folders that may be there."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
