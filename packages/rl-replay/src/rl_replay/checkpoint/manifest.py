"""What a dump says about itself: its format, and where in its data each part lies."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

FORMAT = "rl-replay dump"
FORMAT_VERSION = 2
"""Raised whenever what is written could not be read by the version before."""

MANIFEST = "manifest.json"


def parsed(name: Path) -> tuple[dict[str, Any], bool]:
    """The manifest, and whether it is whole.

    Args:
        name: Its file.

    Raises:
        FileNotFoundError: There is no dump.
        ValueError: The file is something else.
    """
    try:
        text = name.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            error.errno,
            f"{name.parent} holds no dump: there is no {MANIFEST} in it. Give the folder that "
            "was given to dumps()",
        ) from None
    body, _, seal = text.rpartition(b"\n")
    try:
        head = json.loads(body)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(
            f"{name} is no manifest of a dump, or was truncated: expected the format {FORMAT!r}."
        )
    return head, seal == b"%08x" % zlib.crc32(body)


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a dump, checked.

    Args:
        folder: Where the dump lies.

    Raises:
        FileNotFoundError: There is no dump.
        ValueError: Another format, version or byte order, or a manifest that was altered.
    """
    name = folder / MANIFEST
    head, whole = parsed(name)
    if head.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"{name} is of version {head.get('version')} and this one reads {FORMAT_VERSION}: "
            "read it with the rl-replay that wrote it."
        )
    if not whole:
        raise ValueError(f"{name} was altered: its checksum differs. Restore it from a copy.")
    if head["byteorder"] != sys.byteorder:
        raise ValueError(
            f"{name} was written {head['byteorder']}-endian, this machine is "
            f"{sys.byteorder}-endian. Read it on such a machine."
        )
    return head


def sealed(head: dict[str, Any]) -> bytes:
    """The text of a manifest, with its checksum in the last line.

    Example:
        >>> sealed({"format": FORMAT}).decode().splitlines()[-1]
        'e00aa34c'
    """
    body = json.dumps(head, indent=1).encode()
    return body + b"\n%08x" % zlib.crc32(body)
