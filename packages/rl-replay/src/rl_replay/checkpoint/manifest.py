"""The header of a dump: its format, and the offset of each part in its data."""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from math import prod
from pathlib import Path
from typing import Any

from rl_slabs.internals import dtype_named, open_regular

FORMAT = "rl-replay dump"
FORMAT_VERSION = 2
"""Raised with every change that older versions could not read."""

MANIFEST = "manifest.json"

LIMIT_BYTES = 256 << 20
"""The most that a manifest may have; arrays are not in it."""

_DATA_FILE = re.compile(r"data-[0-9a-f]{1,64}")


def parsed(name: Path) -> tuple[dict[str, Any], bool]:
    """The manifest, and whether its checksum is right."""
    try:
        text = _text(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            error.errno,
            f"{name.parent} holds no dump: there is no {MANIFEST} in it. Give the folder that "
            "was given to dumps()",
        ) from None
    body, _, seal = text.rpartition(b"\n")
    try:
        head = json.loads(body)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(
            f"{name} is no manifest of a dump, or was truncated: expected the format {FORMAT!r}."
        )
    return head, seal == b"%08x" % zlib.crc32(body)


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a dump, checked."""
    name = folder / MANIFEST
    head, whole = parsed(name)
    if head.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"{name} is of version {head.get('version')} and this one reads {FORMAT_VERSION}: "
            "read it with the rl-replay that wrote it."
        )
    if not whole:
        raise ValueError(f"{name} was altered: its checksum differs. Restore it from a copy.")
    if head.get("byteorder") != sys.byteorder:
        raise ValueError(
            f"{name} was written {head.get('byteorder')}-endian, this machine is "
            f"{sys.byteorder}-endian. Read it on such a machine."
        )
    _check(head, name)
    return head


def is_named(folder: Path, name: str) -> bool:
    """Whether the manifest of a dump names a file or folder of its own, drawn at random."""
    try:
        return name.encode() in _text(folder / MANIFEST)
    except (OSError, ValueError):
        return False


def _text(name: Path) -> bytes:
    with os.fdopen(open_regular(name, os.O_RDONLY, follow=False), "rb") as file:
        text = file.read(LIMIT_BYTES + 1)
    if len(text) > LIMIT_BYTES:
        raise ValueError(f"{name} has more than {LIMIT_BYTES} bytes: it is no manifest of a dump.")
    return text


def _check(head: dict[str, Any], name: Path) -> None:
    """Raises unless a manifest describes arrays, end to end, in a file next to it."""
    # A checksum proves that nothing was altered by accident, not who wrote it.
    data, parts, layout = head.get("data"), head.get("parts"), head.get("layout")
    if not isinstance(data, dict) or not isinstance(parts, dict) or not isinstance(layout, str):
        raise ValueError(f"{name} lacks data, parts or layout: it is no manifest of a dump.")
    file: Any = data.get("file")
    size: Any = data.get("bytes")
    if not isinstance(file, str) or not _DATA_FILE.fullmatch(file) or not is_size(size):
        raise ValueError(
            f"{name} names the data file {file!r} of {size!r} bytes: expected data-*, alongside it."
        )
    end = 0
    for part, entry in parts.items():
        if not isinstance(entry, dict) or ("plain" in entry) == ("offset" in entry):
            raise ValueError(f"{name}: part {part!r} is neither an array nor a plain value.")
        if "plain" in entry:
            continue
        end = _end_of(part, entry, end, name)
    if end > size:
        raise ValueError(f"{name} names {end} bytes of arrays in a file of {size} bytes.")


def _end_of(part: str, entry: dict[str, Any], end: int, name: Path) -> int:
    """The end of an array, which begins no earlier than the end of the one before it."""
    offset: Any = entry.get("offset")
    size, shape = entry.get("bytes"), entry.get("shape")
    dtype, crc32 = entry.get("dtype"), entry.get("crc32")
    if (
        not isinstance(shape, list)
        or not isinstance(dtype, str)
        or entry.get("kind") not in ("array", "tensor")
        or not all(map(is_size, (offset, size, crc32, *shape)))
    ):
        raise ValueError(f"{name}: part {part!r} is no array: {entry}.")
    if size != prod(shape) * dtype_named(dtype).itemsize or not end <= offset < end + 4096:
        raise ValueError(
            f"{name}: array {part!r} of {dtype} {shape} does not take the {size} bytes from "
            f"{offset} on, after {end}. Restore the dump from a copy."
        )
    return int(offset) + int(size)


def is_size(value: object) -> bool:
    """Whether a value of a manifest is a count, an offset or a number of bytes."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def sealed(head: dict[str, Any]) -> bytes:
    """The text of a manifest, with its checksum in the last line."""
    body = json.dumps(head, indent=1).encode()
    return body + b"\n%08x" % zlib.crc32(body)
