"""Animated PNG: videos that every browser plays, written with nothing but zlib.

Source: Portable Network Graphics, third edition, W3C 2025, sections 5 and 11.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from torch import Tensor

LARGEST = 2**16 - 1
SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # by the number of channels


def write_animation(path: Path, frames: Tensor, fps: float) -> None:
    """Write frames, uint8 ``[T, C, H, W]``, as an animated PNG that repeats."""
    with path.open("wb") as file:
        file.write(SIGNATURE)
        for chunk in _chunks(frames, fps):
            file.write(_framed(*chunk))


def still_png(frame: Tensor) -> bytes:
    """A frame, uint8 ``[C, H, W]``, as a PNG."""
    data = zlib.compress(_scanlines(frame), 6)
    chunks = ((b"IHDR", _header(*frame.shape)), (b"IDAT", data), (b"IEND", b""))
    return SIGNATURE + b"".join(_framed(*chunk) for chunk in chunks)


def _framed(kind: bytes, content: bytes) -> bytes:
    """A chunk as files hold it: its size, itself, its checksum."""
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


def _header(channels: int, height: int, width: int) -> bytes:
    # 8 bits a channel; compression, filters and interlacing as in every PNG
    return struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)


def _chunks(frames: Tensor, fps: float) -> Iterator[tuple[bytes, bytes]]:
    """The kind and the content of each chunk."""
    num, channels, height, width = frames.shape
    yield b"IHDR", _header(channels, height, width)
    yield b"acTL", struct.pack(">II", num, 0)  # 0: endlessly
    number = 0  # counts the chunks of the animation
    duration = _fraction(1 / fps)
    for t in range(num):
        # size, place, how long as a fraction of a second; the frame replaces the one before
        shown = (width, height, 0, 0, *duration, 0, 0)
        yield b"fcTL", struct.pack(">IIIIIHHBB", number, *shown)
        data = zlib.compress(_scanlines(frames[t]), 6)
        number += 1
        if t == 0:  # what a viewer without animations shows
            yield b"IDAT", data
            continue
        yield b"fdAT", struct.pack(">I", number) + data
        number += 1
    yield b"IEND", b""


def _fraction(seconds: float) -> tuple[int, int]:
    """Numerator and denominator of a duration, two bytes each."""
    exact = Fraction(min(max(seconds, 1 / LARGEST), 65.0))
    # above 1 second the numerator is the larger one
    found = exact.limit_denominator(LARGEST if exact < 1 else 1000)
    return found.numerator, found.denominator


def _scanlines(frame: Tensor) -> bytes:
    """Pixels ``[C, H, W]`` row by row, the number of its filter, 0 for none, before each row."""
    rows = frame.permute(1, 2, 0).flatten(1).cpu().numpy()
    return np.pad(rows, ((0, 0), (1, 0))).tobytes()
