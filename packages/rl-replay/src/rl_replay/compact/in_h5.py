"""Compact rows in an HDF5 file of their own, which other programs can read by trajectory.

==================================  ===========================================================
``shared/KEY``, ``shared/KEY/...``  leaves that are kept once, ``[N + S, ...]``
``steps/KEY``, ...                  the other leaves ``[N, ...]``
``exceptions/NUMBER``               of shared leaf NUMBER the rows and their next values
``lengths``                         int64 ``[S]``, rows of each trajectory
``order``                           int32 ``[N]``, the place of each row by age, if it is another
==================================  ===========================================================

The rows of trajectory s are those from ``sum(lengths[:s])`` on, in shared leaves s places later.
A dtype that HDF5 lacks is stored as integers of its size; the attribute ``dtype`` names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.checkpoint.parts import SMALL_BYTES
from rl_replay.compact.decode import paths_of, require_numbers
from rl_replay.compact.encode import CompactRows
from rl_slabs.internals import carrier, dtype_named, name_of
from rl_tensordict.types import Ints, KeyPath

_CHUNK_BYTES = 1 << 18
"""Bytes of a chunk, the unit that HDF5 reads, checks and compresses."""


def h5py() -> Any:
    """The module, which is an extra."""
    try:
        import h5py as module
    except ImportError as error:
        raise ImportError(
            "HDF5 files need h5py, which is an extra: pip install rl-replay[h5]."
        ) from error
    return module


def write(
    name: Path, rows: CompactRows, order: NDArray[np.int32] | None, options: Mapping[str, Any]
) -> None:
    """Writes compact rows to a new file, one block of rows after another."""
    count = len(rows.positions)
    more = count + len(rows.lengths)
    with h5py().File(name, "x") as file:
        file.attrs["format"], file.attrs["version"] = "rl-replay rows", 1
        file.attrs["shared"] = json.dumps([list(pair.root.path) for pair in rows.pairs])
        file.attrs["steps"] = json.dumps([list(one.path) for one in rows.steps])
        file.create_dataset("lengths", data=rows.lengths)
        if order is not None:
            file.create_dataset("order", data=order)
        shared = [
            _made(file, _named("shared", pair.root.path), pair.root, more, options)
            for pair in rows.pairs
        ]
        steps = [_made(file, _named("steps", one.path), one, count, options) for one in rows.steps]
        fields = [one for pair in rows.pairs for one in pair] + rows.steps
        begin = 0  # of the block in shared leaves
        for block in rows.blocks(fields):
            # root and next of each pair, then the others
            leaves, size = rows.read(block, fields), 0
            for number, (dataset, pair) in enumerate(zip(shared, rows.pairs, strict=True)):
                piece = rows.shared(block, *leaves[2 * number : 2 * number + 2])
                _write(dataset, begin, piece, pair.root)
                size = len(piece)  # rows of the block, and one more for each end in it
            others = zip(steps, rows.steps, leaves[2 * len(shared) :], strict=True)
            for dataset, one, leaf in others:
                _write(dataset, block.start, leaf, one)
            begin += size
        for number, pair in enumerate(rows.pairs):
            wrong = rows.exceptions[pair.root.path]
            if len(wrong):
                file.create_dataset(f"exceptions/{number}/rows", data=wrong)
                values = _made(file, f"exceptions/{number}/values", pair.root, len(wrong), options)
                start = 0
                for piece in rows.exception_pieces(pair):
                    _write(values, start, piece, pair.root)
                    start += len(piece)


class H5Rows:
    """The compact rows of a file; see `CompactSource`."""

    def __init__(self, name: Path, count: int) -> None:
        self._name, self._count = name, count
        with _read_from(name):
            self._file = h5py().File(name, "r")
        try:
            with _read_from(name):
                self._read_head()
        except BaseException:
            self._file.close()
            raise

    def _read_head(self) -> None:
        """Reads what says how many rows there are of which leaves."""
        if self._file.attrs.get("format") != "rl-replay rows":
            raise ValueError(
                f"{self._name} is no file of rows of rl-replay. Restore it from a copy."
            )
        self.shared, self.steps = self._paths("shared"), self._paths("steps")
        self.lengths: Ints = self._numbers("lengths", "int64")
        is_given = self._found("order") is not None
        self.order: Ints | None = self._numbers("order", "int32") if is_given else None

    def layout(self, group: str, path: KeyPath) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and the shape of a leaf in a group."""
        dataset = self._leaf(group, path)
        with _read_from(self._name):
            dtype = dtype_named(str(dataset.attrs.get("dtype")))
            found = dataset.dtype
        if found != _stored(dtype):
            raise ValueError(f"{self._name}: {path} is {found}, not {dtype}. Restore it.")
        return dtype, tuple(dataset.shape)

    def _leaf(self, group: str, path: KeyPath) -> Any:
        where = _named(group, path)
        if group == "exceptions":
            where = f"exceptions/{self.shared.index(path)}/values"
        return self._dataset(where)

    def pieces(self, group: str, path: KeyPath) -> Iterator[torch.Tensor]:
        """The rows of a leaf, one piece after another."""
        dataset = self._leaf(group, path)
        dtype = dtype_named(str(dataset.attrs["dtype"]))
        each = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
        step = max(1, SMALL_BYTES // each)
        for start in range(0, len(dataset), step):
            with _read_from(self._name):
                piece = torch.from_numpy(dataset[start : start + step])
            yield piece.view(dtype)

    def exceptions(self, path: KeyPath) -> Ints:
        """The rows whose next value is not that of the row after them."""
        name = f"exceptions/{self.shared.index(path)}/rows"
        return np.zeros(0, np.int64) if self._found(name) is None else self._numbers(name, "int64")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _paths(self, name: str) -> list[KeyPath]:
        try:
            listed = json.loads(self._file.attrs[name])
        except (KeyError, RecursionError, TypeError, ValueError):
            listed = None
        return paths_of(str(self._name), listed)

    def _numbers(self, name: str, dtype: str) -> Ints:
        dataset = self._dataset(name)
        with _read_from(self._name):
            require_numbers(f"{name!r} of {self._name}", dataset, dtype, self._count)
            found: Ints = dataset[:]
        return found

    def _dataset(self, name: str) -> Any:
        """A dataset that is in this file, not in one that a link leads to."""
        found = self._found(name)
        if found is None:
            raise ValueError(f"{self._name} has no {name!r}. Restore it from a copy.")
        return found

    def _found(self, name: str) -> Any:
        """A dataset, None if there is none; nothing is opened that a link leads to."""
        found, module = self._file, h5py()
        with _read_from(self._name):
            for part in name.split("/"):
                is_group = isinstance(found, module.Group)
                link = found.get(part, getlink=True) if is_group else None
                if link is None:
                    return None
                if not isinstance(link, module.HardLink):
                    raise ValueError(f"{self._name}: {name!r} is a link. Restore it from a copy.")
                found = found[part]
            is_own = isinstance(found, module.Dataset) and found.shape is not None
            is_own = is_own and not found.external and not found.is_virtual
            # a chunk is read whole
            sizes = zip(found.chunks or (), found.shape, strict=False) if is_own else ()
            if not is_own or any(chunk > max(1, size) for chunk, size in sizes):
                raise ValueError(f"{self._name}: {name!r} is no dataset of it. Restore the file.")
        return found


@contextmanager
def _read_from(name: Path) -> Iterator[None]:
    """Errors of HDF5 as what they mean: a file with the right checksum that is none of ours."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise ValueError(f"{name} cannot be read: {error}. Restore it from a copy.") from error


def _made(file: Any, name: str, one: Any, count: int, options: Mapping[str, Any]) -> Any:
    """A new dataset for the rows of a leaf."""
    dtype = _stored(one.dtype)
    # HDF5 refuses empty chunks, and filters on empty datasets
    chunk = min(count, max(1, _CHUNK_BYTES // max(1, one.nbytes)))
    chunks = (chunk, *(max(1, size) for size in one.shape))
    is_empty = not count or not one.nbytes
    layout = {} if is_empty else {"chunks": chunks, **options}
    dataset = file.create_dataset(name, (count, *one.shape), dtype, **layout)
    dataset.attrs["dtype"] = name_of(one.dtype)
    return dataset


def _named(group: str, path: KeyPath) -> str:
    """The name of a dataset; what HDF5 would take for a path is written as %2F."""
    return "/".join([group, *(quote(part, safe=" ").replace(".", "%2E") for part in path)])


def _write(dataset: Any, start: int, piece: torch.Tensor, one: Any) -> None:
    if piece.numel():
        array = piece.contiguous().cpu().view(carrier(one.dtype)).numpy()
        dataset[start : start + len(piece)] = array.view(_stored(one.dtype))


def _stored(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype in the file: flags as bytes, which HDF5 copies as they are."""
    found = torch.empty(0, dtype=carrier(dtype), device="cpu").numpy().dtype
    return np.dtype(np.uint8) if found == np.bool_ else found
