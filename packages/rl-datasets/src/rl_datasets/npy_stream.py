"""Arrays of numpy in compressed files, read row by row."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from rl_tensordict.types import Array

_BROKEN = (EOFError, OSError, zlib.error, zipfile.BadZipFile, ValueError)


class NpyStream:
    """The array of a gzipped `.npy` file, whose rows are read in order; never a pickle."""

    # Another open file may be given instead, as of an archive.
    # shape: Of the whole array.

    def __init__(self, path: Path, file: IO[bytes] | None = None) -> None:
        self.path = path
        # closed by `close`
        self._file: Any = gzip.open(path) if file is None else file  # noqa: SIM115
        try:
            version = np.lib.format.read_magic(self._file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            self.shape, fortran, self.dtype = read(self._file)
        except (*_BROKEN, KeyError) as error:
            self.close()
            raise ValueError(f"{path} holds no array of numpy: {error!r}.") from error
        if fortran or self.dtype.hasobject:
            self.close()
            raise ValueError(
                f"{path} holds {self.dtype} {list(self.shape)}, expected rows of numbers."
            )

    def read(self, rows: int) -> Array:
        """The next rows."""
        wanted = rows * math.prod(self.shape[1:]) * self.dtype.itemsize
        begin = self._file.tell()
        try:
            found = self._file.read(wanted)
        except _BROKEN as error:
            raise self._early(begin, error) from error
        if len(found) < wanted:
            raise self._early(begin + len(found), "no more bytes")
        return np.frombuffer(found, self.dtype).reshape(rows, *self.shape[1:])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _early(self, place: int, why: object) -> ValueError:
        return ValueError(
            f"{self.path} ends too early, or is damaged, after byte {place} of its unpacked "
            f"content ({why}): copy it again."
        )
