"""What an `.xz` file says of its content without being unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

_FOOTER = _HEADER = 12  # bytes


def unpacked_size(path: Path) -> int:
    """Bytes that a file unpacks to, by the indexes at the ends of its streams."""
    # Source: the .xz file format, version 1.2.1, sections 2.1.2 and 4.
    total, end = 0, path.stat().st_size
    with path.open("rb") as file:
        while end:
            try:
                size, end = _last_stream(file, end)
            except (ValueError, IndexError) as error:
                raise ValueError(
                    f"{path} is damaged, or ends too early: there is no index before byte {end} "
                    f"({error}); it has {path.stat().st_size} bytes: copy it again."
                ) from error
            total += size
    return total


def _last_stream(file: BinaryIO, end: int) -> tuple[int, int]:
    """What the stream that ends at a byte unpacks to, and where it begins."""
    footer = _read(file, end - _FOOTER, _FOOTER)
    if not any(footer[-4:]):
        return 0, end - 4  # padding
    if footer[-2:] != b"YZ":
        raise ValueError("no end of a stream")
    index_size = 4 * (int.from_bytes(footer[4:8], "little") + 1)
    begin = end - _FOOTER - index_size
    index = _read(file, begin, index_size)
    count, place = _number(index, 1)
    total = 0
    for _ in range(count):
        packed, place = _number(index, place)
        unpacked, place = _number(index, place)
        total += unpacked
        begin -= packed + -packed % 4
    return total, begin - _HEADER


def _read(file: BinaryIO, begin: int, size: int) -> bytes:
    if begin < 0:
        raise ValueError("it begins before the file")
    file.seek(begin)
    return file.read(size)


def _number(content: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the next one is."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
