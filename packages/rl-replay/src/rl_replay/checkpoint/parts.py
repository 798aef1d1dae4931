"""What a dump holds: named arrays, and the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.internals import carrier, name_of

PIECE_BYTES = 8 << 20
"""Arrays are copied, checked and written in pieces of about this size."""

SMALL_BYTES = PIECE_BYTES // 8
"""Pieces of which several copies are held at a time."""

SEPARATOR = "/"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Chunks:
    """An array that is made piece by piece, while it is written."""

    dtype: torch.dtype  # Its dtype
    shape: tuple[int, ...]  # Its shape
    # Makes the pieces, one after another along the first dimension
    pieces: Callable[[], Iterable[torch.Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.dtype.itemsize * prod(self.shape)


@dataclass(frozen=True)
class Late:
    """A plain value that is asked for when every part before it is on the disk."""

    value: Callable[[], Any]  # a description


@dataclass(frozen=True)
class OtherFile:
    """A file of rows next to the data of a dump; it is described in its place."""

    suffix: str  # Of its name
    write: Callable[[Path], None]  # Writes a file that is not there yet
    link: str | None = None  # Another name for it, which the next dump takes away


@dataclass(frozen=True)
class Folder:
    """A folder within a dump that something else fills: it comes and goes with the dump.

    It is read as the path of the folder.
    """

    write: Callable[[Path], None]  # Makes a folder that is not there yet, and fills it


ArrayPart = torch.Tensor | NDArray[Any] | Chunks
Part = (
    ArrayPart
    | Folder
    | OtherFile
    | Mapping[str, Any]
    | list[Any]
    | tuple[Any, ...]
    | str
    | float
    | int
    | bool
    | None
)
"""A part of a dump: an array, a folder, a group of named parts, or a JSON value."""


Hold = Callable[[torch.Tensor], torch.Tensor]
"""Gives a piece of the rows, which does not change while it is written."""


def slices_of(leaf: torch.Tensor, places: Iterable[slice], hold: Hold) -> Chunks:
    """Some slices of a tensor, end to end, copied piece by piece only when they are written."""
    found = [leaf[place] for place in places]
    count = sum(len(piece) for piece in found)

    def pieces() -> Iterator[torch.Tensor]:
        step = _rows_of_piece(leaf)
        for piece in found:
            for part in piece.split(step) if len(piece) else ():
                yield hold(part)

    return Chunks(leaf.dtype, (count, *leaf.shape[1:]), pieces)


def taken_of(leaf: torch.Tensor, rows: torch.Tensor) -> Chunks:
    """Some rows of a tensor, gathered piece by piece only when they are written."""
    bits = leaf.view(carrier(leaf.dtype))

    def pieces() -> Iterator[torch.Tensor]:
        for some in rows.split(_rows_of_piece(leaf)) if len(rows) else ():
            yield bits[some].view(leaf.dtype)

    return Chunks(leaf.dtype, (len(rows), *leaf.shape[1:]), pieces)


def raw_pieces(array: ArrayPart) -> Iterator[Bytes]:
    """The bytes of an array, in pieces."""
    if isinstance(array, np.ndarray):
        array = torch.from_numpy(np.ascontiguousarray(array))
    pieces = [array] if isinstance(array, torch.Tensor) else array.pieces()
    for piece in pieces:
        leaf = piece.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = leaf.view(carrier(leaf.dtype)).numpy().reshape(-1).view(np.uint8)
        for start in range(0, len(flat), PIECE_BYTES):
            yield flat[start : start + PIECE_BYTES]


def described(array: ArrayPart) -> dict[str, Any]:
    """The dtype, the shape and the kind of an array, for JSON."""
    kind = "array" if isinstance(array, np.ndarray) else "tensor"
    dtype = torch.from_numpy(array[:0]).dtype if isinstance(array, np.ndarray) else array.dtype
    carrier(dtype)
    return {"kind": kind, "dtype": name_of(dtype), "shape": list(array.shape)}


def flat(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every array and value of a tree of parts, named by its path."""
    for name, part in parts.items():
        if not isinstance(name, str) or SEPARATOR in name:
            raise ValueError(f"parts are named by strings without {SEPARATOR!r}: got {name!r}.")
        if isinstance(part, Mapping) and part:
            yield from flat(part, f"{prefix}{name}{SEPARATOR}")
            continue
        if not isinstance(part, torch.Tensor | np.ndarray | Chunks | Folder | Late | OtherFile):
            _require_plain(f"{prefix}{name}", part)
        yield f"{prefix}{name}", part


def tree(parts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The tree whose parts `flat` listed."""
    found: dict[str, Any] = {}
    for name, part in parts:
        *groups, last = name.split(SEPARATOR)
        place = found
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise ValueError(f"{name!r} is a part of {group!r}, which is one itself.")
        place[last] = part
    return found


def _rows_of_piece(leaf: torch.Tensor) -> int:
    return max(1, PIECE_BYTES // max(1, leaf.dtype.itemsize * prod(leaf.shape[1:])))


def _require_plain(name: str, part: Any) -> None:
    try:
        json.dumps(part, allow_nan=True)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name!r} cannot be written to a dump: {error}. A dump holds tensors, arrays, "
            "numbers, strings, lists and dicts, and never pickles."
        ) from None
