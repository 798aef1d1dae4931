"""Files of rows next to the data of a dump: described by its manifest, and checked."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Any

from rl_replay.checkpoint.parts import PIECE_BYTES
from rl_slabs.internals import open_regular

ROWS = "rows-"

_NAME = re.compile(r"rows-[0-9a-f]{1,64}\.[a-z0-9]{1,8}")


def described_file(name: Path) -> dict[str, Any]:
    """What a manifest says of a file, once it is on the disk."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return {"file": name.name, "bytes": os.fstat(descriptor).st_size, "crc32": _sum(descriptor)}
    finally:
        os.close(descriptor)


def is_described(value: object) -> bool:
    """Whether a plain value of a manifest describes a file."""
    return isinstance(value, dict) and set(value) == {"file", "bytes", "crc32"}


def checked_file(folder: Path, value: Any) -> Path:
    """The file that a manifest describes, which must be there as it was written."""
    file = value.get("file") if is_described(value) else None
    if not isinstance(file, str) or not _NAME.fullmatch(file):
        raise ValueError(f"{folder} names no file of rows: {value!r}. Restore it from a copy.")
    name = folder / file
    try:
        descriptor = open_regular(name, os.O_RDONLY, follow=False)
    except FileNotFoundError as error:
        raise ValueError(f"{name} is missing, which {folder} names. Restore it.") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != value["bytes"]:
            raise ValueError(
                f"{name} was truncated or appended to: expected {value['bytes']} bytes, got "
                f"{size}. Restore it from a copy."
            )
        if _sum(descriptor) != value["crc32"]:
            raise ValueError(f"{name} was altered: its checksum differs. Restore it from a copy.")
    finally:
        os.close(descriptor)
    return name


def _sum(descriptor: int) -> int:
    checksum, place = 0, 0
    while piece := os.pread(descriptor, PIECE_BYTES, place):
        checksum, place = zlib.crc32(piece, checksum), place + len(piece)
    return checksum
