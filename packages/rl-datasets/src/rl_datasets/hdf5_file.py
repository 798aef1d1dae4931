"""HDF5 files, read without the cost of h5py's objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_datasets.plain_hdf5 import PlainColumn, PlainHDF5
from rl_tensordict.types import Array, KeyPath

_GROUPS_AT_ONCE = 512

if TYPE_CHECKING:
    import h5py


def import_h5py() -> Any:
    """h5py, or what to install."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ImportError(
            "this dataset is an HDF5 file and h5py is not installed: pip install "
            "'rl-datasets[hdf5]'."
        ) from error
    return h5py


@contextmanager
def open_h5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file, to be read; says which one is damaged, and where."""
    h5py = import_h5py()
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise damaged(path, error) from error
    with file:
        yield file


def damaged(path: Path, error: Exception, where: str = "") -> ValueError:
    """The error for a file that ends too early or is no HDF5 file; `error` has the offset."""
    at = f", {where}" if where else ""
    return ValueError(
        f"{path}{at}: the file is damaged, or ends too early ({error}); it has "
        f"{path.stat().st_size} bytes. Download or copy it again."
    )


def leaves(group: h5py.Group, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, h5py.Dataset]]:
    """Every dataset below a group."""
    h5py = import_h5py()
    for name, item in group.items():
        if isinstance(item, h5py.Group):
            yield from leaves(item, (*prefix, name))
        else:
            yield (*prefix, name), item


def open_group(file: h5py.File, name: str) -> h5py.h5g.GroupID:
    """A group, without the cost of h5py's object of it."""
    return import_h5py().h5g.open(file.id, name.encode())


class ColumnReader:
    """Reads one column of every episode: its path below the group of an episode, and its form."""

    def __init__(self, path: KeyPath, dataset: h5py.Dataset) -> None:
        h5py, self.path = import_h5py(), path
        self._open, self._all = h5py.h5d.open, h5py.h5s.ALL
        self.name = "/".join(path).encode()
        self.dtype: np.dtype[Any] = dataset.dtype
        self._type = h5py.h5t.py_create(self.dtype)

    def read(self, group: h5py.h5g.GroupID) -> Array:
        """The whole column of an episode."""
        dataset = self._open(group, self.name)
        found = np.empty(dataset.shape, self.dtype)
        if found.size:
            dataset.read(self._all, self._all, found, self._type)
        return found


class GroupReader:
    """Reads columns of groups in turn, without HDF5's calls where the file is plain.

    Readers are those of the columns of the first group.
    """

    def __init__(self, file: h5py.File, path: Path, names: Sequence[str]) -> None:
        self._file, self._names = file, names
        self._plain = PlainHDF5(path)
        self._found: dict[KeyPath, PlainColumn] = {}
        self._looked = range(0)  # the groups whose columns were looked for

    def read(self, place: int, columns: Mapping[KeyPath, ColumnReader]) -> dict[KeyPath, Array]:
        """The columns of a group, by the keys of their readers."""
        if place not in self._looked:
            self._looked = range(place, place + _GROUPS_AT_ONCE)
            # first the group whose columns the readers were made for
            some = [self._names[0], *self._names[place : place + _GROUPS_AT_ONCE]]
            self._found = self._plain.find(some)
        found, group = {}, None
        for key, reader in columns.items():
            plain, column = self._found.get(reader.path), None
            if plain is not None:
                column = self._plain.read(plain, 1 + place - self._looked.start, reader.dtype)
            if column is None:
                group = open_group(self._file, self._names[place]) if group is None else group
                column = reader.read(group)
            found[key] = column
        return found


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a tensor can hold it."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8
