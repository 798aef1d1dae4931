"""Records of TensorFlow, and the examples in them, read by their bytes."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from rl_datasets.rlds.crc32c import masked_crc
from rl_tensordict.types import Array

_HEAD, _FOOT = 12, 4  # bytes before and after the content of a record
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LISTS = {1: "bytes", 2: "float", 3: "int64"}
Feature = list[bytes] | Array


class Record(NamedTuple):
    """Where a record is."""

    path: Path
    begin: int  # of its content
    size: int


def records(path: Path) -> Iterator[tuple[Record, memoryview]]:
    """The records of a file, whose lengths are checked; `read` checks their content."""
    # The file is mapped, so that of a content only what is looked at is read.
    size = path.stat().st_size
    if not size:
        return
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    place = 0
    while place < size:
        head, begin = bytes(mapped[place : place + _HEAD]), place + _HEAD
        if len(head) < _HEAD:
            raise _early(path, place, "a record begins")
        length, crc = struct.unpack("<QI", head)
        if masked_crc(head[:8]) != crc:
            raise _early(path, place, "the length of a record is wrong")
        if begin + length + _FOOT > size:
            raise _early(path, place, f"a record of {length} bytes begins")
        yield Record(path, begin, length), mapped[begin : begin + length]
        place = begin + length + _FOOT


def read(file: BinaryIO, record: Record) -> bytes:
    """The content of a record."""
    file.seek(record.begin)
    content = file.read(record.size)
    (crc,) = struct.unpack("<I", file.read(_FOOT))
    if masked_crc(content) != crc:
        raise _early(record.path, record.begin, "a record has another checksum")
    return content


def example(content: bytes | memoryview) -> dict[str, memoryview]:
    """The features of an example by name, each still packed; `unpacked` reads one."""
    found: dict[str, memoryview] = {}
    for field, features in _fields(memoryview(content)):
        if field != 1:
            continue
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            found[bytes(parts[1]).decode("utf-8")] = parts.get(2, memoryview(b""))
    return found


def unpacked(feature: memoryview) -> Feature:
    """The values of a feature: a list of bytes, or float32 or int64 `[n]`."""
    for field, values in _fields(feature):
        kind = _LISTS.get(field)
        if kind == "bytes":
            return [bytes(value) for _, value in _fields(values)]
        if kind == "float":
            return np.concatenate([_floats(v) for _, v in _fields(values)] or [np.empty(0, "<f4")])
        if kind == "int64":
            return np.concatenate([_varints(v) for _, v in _fields(values)] or [np.empty(0, int)])
    return []


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message, each as bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind == _VARINT:
            size = _varint(message, place)[1] - place
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if size < 0 or place + size > len(message):
            raise ValueError(f"an example is damaged: field {tag >> 3} is of kind {kind}.")
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("an example is damaged: a number does not end.")


def _floats(packed: memoryview) -> Array:
    return np.frombuffer(packed, "<f4")


def _varints(packed: memoryview) -> Array:
    """Whole numbers of seven bits a byte, the lowest first; int64 `[n]`."""
    rows = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(rows < 128)
    if not len(ends):
        return np.empty(0, np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1])
    place = np.arange(len(rows)) - np.repeat(begins, ends - begins + 1)
    bits = (rows & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    found: Array = np.bitwise_or.reduceat(bits, begins).view(np.int64)
    return found


def _early(path: Path, place: int, what: str) -> ValueError:
    return ValueError(
        f"{path} is damaged, or ends too early: after byte {place} {what}; the file has "
        f"{path.stat().st_size} bytes. Copy it again."
    )
