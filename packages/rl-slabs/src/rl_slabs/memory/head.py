"""What a file of ours begins with: magic, version, checksum, and a JSON object about the rest."""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from typing import Any, NamedTuple

_LIMIT = 64 << 20  # bytes of JSON: more is no head of ours
_PAGE = 4096
_HEAD = struct.Struct("<8sIIQ")  # magic, version, crc32 of the JSON, bytes of the JSON


class Head(NamedTuple):
    """The head of one kind of file."""

    magic: bytes
    version: int  # Raised whenever the layout of the file changes
    absent: str  # The error for a file that does not begin so, as "is no slab"
    format: str  # The error for one with another version, as "slab format {}"

    def pack(self, plain: dict[str, object]) -> bytes:
        """The bytes of a head that describes its file by a JSON object, unpadded."""
        text = json.dumps({"byteorder": sys.byteorder, **plain}, separators=(",", ":")).encode()
        return _HEAD.pack(self.magic, self.version, zlib.crc32(text), len(text)) + text

    def read(self, descriptor: int, name: str) -> dict[str, Any]:
        """The JSON object in the head of an open file."""
        start = os.pread(descriptor, _HEAD.size, 0)
        if start[: len(self.magic)] != self.magic or len(start) < _HEAD.size:
            raise ValueError(
                f"{name} {self.absent}: expected it to begin with {self.magic!r}, got "
                f"{start[:8]!r}. Its creation was cut off, or it is another file."
            )
        _, version, checksum, length = _HEAD.unpack(start)
        if version != self.version:
            raise ValueError(
                f"{name} has {self.format.format(version)}, this version reads {self.version}. "
                "Read it with the rl-slabs that wrote it."
            )
        text = os.pread(descriptor, min(length, _LIMIT), _HEAD.size)
        if len(text) != length or zlib.crc32(text) != checksum:
            raise ValueError(f"the head of {name} was altered: its checksum differs. Restore it.")
        plain = _parsed(text, name)
        if plain.get("byteorder") != sys.byteorder:
            raise ValueError(
                f"{name} was written {plain.get('byteorder')}-endian, this machine is "
                f"{sys.byteorder}-endian. Read it on such a machine."
            )
        return plain


def padded(head: bytes) -> int:
    """The bytes of a head in whole pages."""
    return -(-len(head) // _PAGE) * _PAGE


def require_size(descriptor: int, name: str, nbytes: int, of: str = "") -> None:
    """Raises unless a file has the size that its head says."""
    size = os.fstat(descriptor).st_size
    if size != nbytes:
        raise ValueError(
            f"{name} was cut short or appended to: expected {nbytes} bytes{of}, got {size}. "
            "Restore it from a copy."
        )


def _parsed(text: bytes, name: str) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise ValueError(f"the head of {name} is no JSON object. Restore it from a copy.")
    return plain
