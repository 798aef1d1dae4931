"""CRC-32C, as records of TensorFlow are checked by it; 1,024 bytes of many lanes at a time."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_LANE = 1024  # bytes
_MASK = 0xA282EAD8

Registers = NDArray[np.uint32]


def masked_crc(data: bytes) -> int:
    """The checksum of a record, rotated and offset as the format wants it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    table, shifts = _table(), _shifts()
    rows = np.frombuffer(data, np.uint8)
    lanes = len(rows) // _LANE
    crc = 0xFFFFFFFF
    if lanes:
        # the checksum is linear: that of each lane, and the state moved on by a lane of zeros
        states = _advanced(
            np.zeros(lanes, np.uint32), rows[: lanes * _LANE].reshape(lanes, _LANE).T
        )
        first, second, third, fourth = shifts
        # crc(a + b) = crc(a advanced over len(b) zeros) ^ crc(b from state 0)
        for lane in states.tolist():
            moved = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255]
            crc = moved ^ fourth[crc >> 24] ^ lane
    words: list[int] = table.tolist()
    for byte in data[lanes * _LANE :]:
        crc = words[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _advanced(states: Registers, columns: NDArray[np.uint8]) -> Registers:
    """States of many lanes after their bytes, `[bytes, lanes]`."""
    table = _table()
    for column in np.ascontiguousarray(columns):
        low = ((states ^ column) & np.uint32(255)).astype(np.intp)
        states = table[low] ^ (states >> np.uint32(8))
    return states


@cache
def _table() -> Registers:
    """What each byte does to the state."""
    found: Registers = np.arange(256, dtype=np.uint32)
    polynomial = np.uint32(_POLYNOMIAL)
    for _ in range(8):
        found = (found >> np.uint32(1)) ^ (polynomial * (found & np.uint32(1)))
    return found


@cache
def _shifts() -> list[list[int]]:
    """What a lane of zeros does to each byte of the state, lowest byte first."""
    zeros = np.zeros((_LANE, 256), np.uint8)
    bytes_ = np.arange(256, dtype=np.uint32)
    return [_advanced(bytes_ << np.uint32(8 * place), zeros).tolist() for place in range(4)]
