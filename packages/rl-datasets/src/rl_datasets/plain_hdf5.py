"""Where the numbers of many small HDF5 datasets lie in their file, found without HDF5's calls.

To open one dataset HDF5 takes 20 to 40 us, as long as copying 200 KB, and files with a group for
each episode have thousands. Here the same piece of many groups is read at once. Known is the format
that h5py writes unless it is asked for another one (superblock 0, object headers of version 1,
chunks), without filters; the caller reads by HDF5 what `find` and `read` do not know.

HDF5 File Format Specification 3.0: III.A.1 (trees), III.B and III.C (groups), III.D (heaps of
names), IV.A (object headers and their messages).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.types import Array, Flags, Ints, KeyPath

RawBytes: TypeAlias = NDArray[np.uint8]

_SUPERBLOCK = b"\x89HDF\r\n\x1a\n\0"
_SPACE, _TYPE, _EXTERNAL, _LAYOUT, _FILTERS, _MORE = 0x1, 0x3, 0x7, 0x8, 0xB, 0x10  # messages
_NAMES, _CHUNKS = 0, 1  # kinds of trees
_UNKNOWN = ValueError, IndexError, KeyError  # of another form, or damaged
_MOST_BYTES = 1 << 20  # of one description
_DEPTH = 16  # of groups in groups, at most
_GROUP = 1  # the kind of an entry that tells tree and heap
_ENTRY = np.dtype(
    [
        ("name", "<i8"),  # place in the heap
        ("header", "<i8"),
        ("kind", "<u4"),
        ("unused", "<u4"),
        ("tree", "<i8"),
        ("heap", "<i8"),
    ]
)


@dataclass(frozen=True)
class PlainColumn:
    """One dataset of each of some groups."""

    shapes: Ints  # [n, dimensions]
    chunks: Ints  # [n, dimensions + 1]: of one chunk, then bytes of an item
    trees: Ints  # [n], addresses of the trees of their chunks
    only: Ints  # [n], address of the chunk where it is the only one, else -1
    known: Flags  # [n], whether all that is so


class PlainHDF5:
    """A file whose groups at the root have datasets of the same names and dtypes.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        # a plain array over the mapping, which costs less to cut
        self._bytes: RawBytes = np.asarray(np.memmap(path, np.uint8, "r"))
        self._groups: dict[str, NDArray[Any]] = {}  # their entries by name
        head = self._bytes[:96].tobytes()
        sizes_of_addresses, kind = head[13:15], int.from_bytes(head[72:76], "little")
        if head[:9] == _SUPERBLOCK and sizes_of_addresses == b"\x08\x08" and kind == _GROUP:
            tree, heap = np.frombuffer(head, "<i8", 2, 80).tolist()
            self._groups = self._root(tree, heap)

    def find(self, names: Sequence[str]) -> dict[KeyPath, PlainColumn]:
        """The datasets of some groups by their paths, where they are like those of the first."""
        if not names or not all(name in self._groups for name in names):
            return {}
        entries = np.stack([self._groups[name] for name in names])
        found: dict[KeyPath, PlainColumn] = {}
        known = np.ones(len(names), bool)
        try:
            for path, headers in self._walk(entries, known, ()):
                with contextlib.suppress(*_UNKNOWN):
                    found[path] = self._column(headers)
        except _UNKNOWN:
            return {}
        for column in found.values():
            column.known[:] &= known  # of all names, which are read by now
        return found

    def read(self, column: PlainColumn, place: int, dtype: np.dtype[Any]) -> Array | None:
        """A whole dataset, perhaps as a view of the file; None where it is not known."""
        if not column.known[place] or dtype.hasobject:  # which are elsewhere in the file
            return None
        shape, chunk = column.shapes[place].tolist(), column.chunks[place].tolist()
        if chunk.pop() != dtype.itemsize or min(shape) < 0 or min(chunk) < 1:
            return None
        begin = int(column.only[place])
        try:
            if begin >= 0 and chunk[1:] == shape[1:] and chunk[0] >= shape[0]:
                return self._array(begin, shape, dtype)
            return self._put_together(int(column.trees[place]), shape, chunk, dtype)
        except _UNKNOWN:
            return None

    def _put_together(
        self, tree: int, shape: list[int], chunk: list[int], dtype: np.dtype[Any]
    ) -> Array | None:
        """A dataset of several chunks; None where some are missing, or made by a filter."""
        leaves = self._leaves(tree, _CHUNKS, len(shape) + 2)
        grid = [-(-rows // size) for rows, size in zip(shape, chunk, strict=True)]
        if (leaves[:, 0] >> 32).any() or len(leaves) != prod(grid):
            return None
        corners = np.indices(grid).reshape(len(grid), -1).T * chunk
        if not np.array_equal(leaves[:, 1:-2], corners):
            return None
        addresses = leaves[:, -1]
        if (np.diff(addresses) == prod(chunk) * dtype.itemsize).all():  # one after the other
            parts = self._array(int(addresses[0]), [*grid, *chunk], dtype)
        else:
            parts = np.stack([self._array(one, chunk, dtype) for one in addresses.tolist()])
            parts = parts.reshape(*grid, *chunk)
        # [*grid, *chunk] to [grid 0, chunk 0, grid 1, chunk 1, ...], and without what is over
        axes = np.arange(2 * len(grid)).reshape(2, -1).T.ravel()
        whole: Array = parts.transpose(axes).reshape(
            [g * c for g, c in zip(grid, chunk, strict=True)]
        )
        return whole[tuple(map(slice, shape))]

    def _array(self, begin: int, shape: list[int], dtype: np.dtype[Any]) -> Array:
        end = begin + prod(shape) * dtype.itemsize
        found: Array = self._bytes[begin:end].view(dtype).reshape(shape)
        return found

    def _root(self, tree: int, heap: int) -> dict[str, NDArray[Any]]:
        """The entries of the groups at the root by their names."""
        try:
            names = self._names(np.array([heap]))[0][0]
            found = {}
            for node in self._leaves(tree, _NAMES, 1)[:, 1:]:
                for entry in self._entries(node)[0][0]:
                    if entry["kind"] == _GROUP:
                        found[_name(names, int(entry["name"]))] = entry
        except _UNKNOWN:
            return {}
        return found

    def _walk(
        self, entries: NDArray[Any], known: Flags, prefix: KeyPath
    ) -> Iterator[tuple[KeyPath, Ints]]:
        """The path of each dataset below groups, and the addresses of its headers `[n]`.

        `known` becomes False where a group has others than the first one.
        """
        if len(prefix) > _DEPTH:
            raise ValueError("a group that is in itself")
        names, same = self._names(entries["heap"])
        known &= same
        used = self._rows(entries["tree"][:1], 8)[0][0].view("<u2")[3]
        nodes, inside = self._rows(entries["tree"], 24 + 16 * int(used) + 8)
        known &= inside & _same(nodes[:, :8]) & _is_node(nodes, _NAMES)
        for place in range(32, 32 + 16 * int(used), 16):
            found, same = self._entries(_numbers(nodes[:, place : place + 8]))
            known &= same
            for number, first in enumerate(found[0]):
                path = (*prefix, _name(names[0], int(first["name"])))
                if first["kind"] == _GROUP:
                    yield from self._walk(found[:, number], known, path)
                else:
                    yield path, found["header"][:, number]

    def _names(self, heaps: Ints) -> tuple[RawBytes, Flags]:
        """The bytes of the names of groups `[n, bytes]`, and which are those of the first one."""
        heads, inside = self._rows(heaps, 32)
        _, size, _, _ = heads[0].view("<i8").tolist()
        names, there = self._rows(_numbers(heads[:, 24:]), size)
        same = inside & there & _same(names) & _same(heads[:, :16])
        return names, same & (heads[:, :4].tobytes()[:4] == b"HEAP")

    def _entries(self, nodes: Ints) -> tuple[NDArray[Any], Flags]:
        """The entries in nodes of groups `[n, entries]`; which have the names of the first one."""
        count = int(self._rows(nodes[:1], 8)[0][0].view("<u2")[3])
        rows, inside = self._rows(nodes, 8 + _ENTRY.itemsize * count)
        found = np.ascontiguousarray(rows[:, 8:]).view(_ENTRY)
        same = _same(found["name"]) & _same(found["kind"]) & _same(rows[:, :8])
        return found, inside & same & (rows[0, :4].tobytes() == b"SNOD")

    def _column(self, headers: Ints) -> PlainColumn:
        """A dataset of groups by the addresses of its headers `[n]`."""
        size = int(self._rows(headers[:1], 16)[0][0].view("<u4")[2])
        rows, inside = self._rows(headers, 16 + size)
        form = _HeaderForm(rows[0].tobytes())
        known = inside & _same(rows[:, form.fixed])
        shapes = _numbers(rows[:, form.shape])
        chunks = _numbers(rows[:, form.chunks], "<u4").astype(np.int64)
        trees = _numbers(rows[:, form.tree])[:, 0]
        key = 8 + 8 * chunks.shape[1]
        nodes, inside = self._rows(trees, 24 + key + 8)
        known &= inside & _is_node(nodes, _CHUNKS, level=None)
        counts, keys = _numbers(nodes[:, 6:8], "<u2")[:, 0], nodes[:, 24 : 24 + key]
        single = (counts == 1) & (nodes[:, 5] == 0) & ~keys[:, 4:].any(axis=1)
        single &= _numbers(keys[:, :4], "<u4")[:, 0] == chunks.prod(axis=1)
        only = np.where(single, _numbers(nodes[:, 24 + key :])[:, 0], -1)
        return PlainColumn(shapes, chunks, trees, only, known)

    def _leaves(self, tree: int, kind: int, words: int, below: int = 256) -> Ints:
        """The keys and the addresses of the leaves of a tree, `[leaves, words + 1]`."""
        head = self._rows(np.array([tree]), 24)[0]
        level = int(head[0, 5])
        if not _is_node(head, kind, level=None)[0] or level >= below:
            raise ValueError("no tree of this kind")
        used = int(head[0].view("<u2")[3])
        body = self._rows(np.array([tree + 24]), used * (words + 1) * 8)[0]
        leaves = body.view("<i8").reshape(used, words + 1)
        if not level or not used:
            return leaves
        nodes = leaves[:, -1].tolist()
        return np.concatenate([self._leaves(node, kind, words, level) for node in nodes])

    def _rows(self, addresses: Ints, count: int) -> tuple[RawBytes, Flags]:
        """Bytes from each address on `[n, count]`, and which of them the file has."""
        addresses = addresses.reshape(-1)
        inside = (addresses >= 0) & (addresses <= len(self._bytes) - count)
        if not inside[0] or count > _MOST_BYTES:
            raise ValueError("the file ends before, or has more than descriptions there")
        places = np.where(inside, addresses, addresses[0])
        if len(places) == 1:
            return self._bytes[None, places[0] : places[0] + count].copy(), inside
        return self._bytes[places[:, None] + np.arange(count)], inside


class _HeaderForm:
    """Where the messages of an object header say what."""

    def __init__(self, header: bytes) -> None:
        if header[0] != 1:
            raise ValueError("a header of another version")
        self.fixed = np.zeros(len(header), bool)  # what is equal in all headers of this form
        self.fixed[:12] = True
        self.fixed[4:8] = False  # how many names lead to it
        found, at = {}, 16
        while at + 8 <= len(header):
            kind, size = (int.from_bytes(header[at + n : at + n + 2], "little") for n in (0, 2))
            self.fixed[at : at + 8] = True
            found[kind] = at + 8
            if kind == _TYPE:
                self.fixed[at + 8 : at + 8 + size] = True
            at += 8 + size
        if {_EXTERNAL, _FILTERS, _MORE} & set(found):
            raise ValueError("a dataset that is more than its chunks")
        space, layout = found[_SPACE], found[_LAYOUT]
        rank = header[space + 1]
        is_chunked = header[layout : layout + 3] == bytes([3, 2, rank + 1])
        if header[space] != 1 or not rank or not is_chunked:
            raise ValueError("a dataset without chunks")
        self.fixed[space : space + 8] = self.fixed[layout : layout + 3] = True
        self.shape = slice(space + 8, space + 8 + 8 * rank)
        self.tree = slice(layout + 3, layout + 11)
        self.chunks = slice(layout + 11, layout + 11 + 4 * (rank + 1))


def _same(rows: NDArray[Any]) -> Flags:
    same: Flags = (rows == rows[:1]).all(axis=1)
    return same


def _is_node(rows: RawBytes, kind: int, level: int | None = 0) -> Flags:
    """Which rows begin as a node of a tree does."""
    is_tree: Flags = (rows[:, :4] == np.frombuffer(b"TREE", np.uint8)).all(axis=1)
    is_tree &= rows[:, 4] == kind
    return is_tree if level is None else is_tree & (rows[:, 5] == level)


def _numbers(rows: RawBytes, kind: str = "<i8") -> Ints:
    found: Ints = np.ascontiguousarray(rows).view(kind)
    return found


def _name(names: RawBytes, begin: int) -> str:
    return names[begin:].tobytes().split(b"\0", 1)[0].decode()
