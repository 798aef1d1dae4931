"""From packed rows to a finished TensorDict of views, by a function written for the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_slabs.dtypes import carrier, name_of
from rl_slabs.rows.match import as_cells
from rl_slabs.schema import Field, RowSchema
from rl_tensordict import build_flat
from rl_tensordict.types import KeyPath

Unpack = Callable[..., TensorDict]


def build_unpack(
    fields: Sequence[Field], row_bytes: int, *, contiguous: bool = False, copied: bool = False
) -> Unpack:
    """A function from packed rows and own arrays to one TensorDict of the leaves in `fields`."""
    # It is compiled from straight source, because a loop over the leaves costs half as much again
    # as the operations in it. Each leaf has a version counter of its own: an in-place write to a
    # reward does not invalidate the observation that a network has saved for its backward pass.
    return _built(tuple(fields), row_bytes, contiguous=contiguous, copied=copied)


@lru_cache(maxsize=512)  # a storage has a dozen rows of a few schemas, and is opened again
def _built(fields: tuple[Field, ...], row_bytes: int, *, contiguous: bool, copied: bool) -> Unpack:
    source = unpack_source(fields, row_bytes, contiguous=contiguous, copied=copied)
    scope: dict[str, Any] = {"torch": torch, "build_flat": build_flat, "tensor": torch.from_numpy}
    carriers = {name_of(carrier(field.dtype)) for field in fields}
    scope |= {name: np.dtype(name) for name in carriers}
    exec(compile(source, "<unpack of a row schema>", "exec"), scope)
    return cast("Unpack", scope["unpack"])


def unpack_source(
    fields: Sequence[Field], row_bytes: int, *, contiguous: bool = False, copied: bool = False
) -> str:
    r"""The source of the function that `build_unpack` makes."""
    names = {field.path: f"leaf{number}" for number, field in enumerate(fields)}
    packed = [field for field in fields if field.offset is not None]
    lines = [f"def unpack(packed, arrays, batch{', *more' * copied}):"]
    if copied:
        lines += _viewed(packed, row_bytes, names, contiguous=contiguous)
    else:
        for dtype in dict.fromkeys(field.dtype for field in packed):
            lines += _cut([field for field in packed if field.dtype is dtype], row_bytes, names)
    for field in packed:
        name = names[field.path]
        if len(field.shape) > 1:
            lines.append(f"{name} = {name}.view(batch + {field.shape})")
        if contiguous and not copied:
            lines.append(f"{name} = {name}.clone(memory_format=torch.contiguous_format)")
    large = [names[field.path] for field in fields if field.offset is None]
    lines += [f"{', '.join(large)}, = arrays"] if large else []
    lines.append(f"return {_literal(names)}")
    return "\n    ".join(lines)


def _viewed(
    fields: Sequence[Field], row_bytes: int, names: dict[tuple[str, ...], str], *, contiguous: bool
) -> list[str]:
    """Views by numpy: the items of one dtype in one array, then each leaf."""
    lines, before, items = [], None, ""
    for field in fields:
        offset, carried = field.offset or 0, carrier(field.dtype)
        part = offset // row_bytes if field.nbytes else 0
        if (part, carried) != before:
            items = packed = f"more[{part - 1}]" if part else "packed"
            if carried is not torch.int64:
                items = "items"
                lines.append(f"items = {packed}.view({name_of(carried)})")
            before = part, carried
        item = (offset - part * row_bytes) // field.dtype.itemsize
        place = f"{item}:{item + prod(field.shape)}" if field.shape else f"{item}"
        view = f"{items}[..., {place}]" + ".copy()" * contiguous
        cast = f".view({field.dtype})" * (carried is not field.dtype)
        lines.append(f"{names[field.path]} = tensor({view}){cast}")
    return lines


def _cut(fields: Sequence[Field], row_bytes: int, names: dict[tuple[str, ...], str]) -> list[str]:
    # plain views share the version counter of their base; pieces of unsafe_split and .data do not
    dtype = fields[0].dtype
    view = "packed" if dtype is torch.int64 else f"packed.view({dtype})"
    lines = []
    targets: list[str] = []
    sizes: list[int] = []
    for field in fields:
        item = (field.offset or 0) // dtype.itemsize
        if not field.shape:
            lines.append(f"{names[field.path]} = {view}.select(-1, {item}).data")
            continue
        if gap := item - sum(sizes):
            targets.append("_")
            sizes.append(gap)
        targets.append(names[field.path])
        sizes.append(prod(field.shape))
    if targets and (rest := row_bytes // dtype.itemsize - sum(sizes)):
        targets.append("_")
        sizes.append(rest)
    if targets:
        split = f"unsafe_split_with_sizes({tuple(sizes)}, -1)"
        lines.append(f"{', '.join(targets)}{',' * (len(targets) == 1)} = {view}.{split}")
    return lines


def _literal(names: dict[tuple[str, ...], str]) -> str:
    """The expression of a TensorDict, `names` being the expressions of its leaves by path."""
    groups: dict[str, dict[tuple[str, ...], str]] = {}
    for path, name in names.items():
        groups.setdefault(path[0], {})[path[1:]] = name
    entries = [
        f"{first!r}: {below[()] if () in below else _literal(below)}"
        for first, below in groups.items()
    ]
    return f"build_flat({{{', '.join(entries)}}}, batch)"


class Plan:
    """What reading and writing some leaves needs to know, worked out once."""

    def __init__(self, schema: RowSchema, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.keys = [field.key for field in fields]
        self.packed = any(field.offset is not None for field in fields)
        self.large = [(field.path, field.dtype) for field in fields if field.offset is None]
        self.moves = [(field.path, carrier(field.dtype)) for field in fields]
        # by whether numpy copied the packed rows, and whether each leaf has memory of its own
        self.unpack = {
            (copied, contiguous): build_unpack(
                fields, schema.row_bytes, contiguous=contiguous, copied=copied
            )
            for copied in (False, True)
            for contiguous in (False, True)
        }
        self.columns: list[NDArray[Any]] = []
        self.widest_first: list[tuple[int, NDArray[Any], bool]] = []

    def attach(self, columns: Mapping[KeyPath, NDArray[Any]]) -> None:
        """Know where the leaves are written; there are no columns on a device."""
        if columns:
            self.columns = [columns[field.path] for field in self.fields]
            cells = [(number, *_cells(column)) for number, column in enumerate(self.columns)]
            # the widest leaf touches most lines of rows that are not in the cache yet, and its
            # copy has the time to wait for them
            self.widest_first = sorted(cells, key=lambda cell: -self.fields[cell[0]].nbytes)


def _cells(column: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """A column, as one opaque item a row where one has several in one piece; and whether it is."""
    opaque = prod(column.shape[1:]) > 1 and bool(column[0].flags.c_contiguous)
    return as_cells(column) if opaque else column, opaque
