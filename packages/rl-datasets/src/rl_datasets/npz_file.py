"""Files of several arrays of numpy, read without pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_datasets.npy_stream import NpyStream
from rl_tensordict.types import Array


class NpzFile:
    """The arrays of a `.npz` file by name, each whole or as a stream of rows."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self.names = [name.removesuffix(".npy") for name in archive.namelist()]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def stream(self, name: str) -> NpyStream:
        """An array, to be read row by row and closed."""
        if name not in self.names:
            raise ValueError(f"{self.path} has no array {name!r}, but {sorted(self.names)}.")
        return NpyStream(self.path / name, self._archive.open(f"{name}.npy"))

    def rows(self, name: str) -> int:
        """How many rows an array has, without reading them."""
        with self.stream(name) as stream:
            return stream.shape[0]

    def __getitem__(self, name: str) -> Array:
        with self.stream(name) as stream:
            return stream.read(stream.shape[0])


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """A `.npz` file."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path} is no .npz file, or ends too early, after byte {path.stat().st_size} "
            f"({error}): copy it again."
        ) from error
    with archive:
        yield NpzFile(path, archive)
