"""A slab whose schema is not known yet: created by the first writer."""

from __future__ import annotations

import os
from typing import Self

from rl_slabs.memory.lazy_file import LazyFile
from rl_slabs.memory.manifest import Manifest
from rl_slabs.memory.slab import Slab
from rl_slabs.schema import RowSchema


class LazySlab:
    """A handle to a shared or mapped slab, there before anyone knows what a row holds.

    Every process that is given it calls `make` when it knows: the first one makes the slab, the
    others get the same one. A process that is killed while it makes the slab leaves none, and the
    next one makes it.

    Args:
        file: The file that the slab will be in.
        lanes: Into how many lanes it will be divided.

    Attributes:
        lanes: Into how many lanes the slab is or will be divided.

    Example:
        >>> import torch
        >>> handle = LazySlab.shared(lanes=2)
        >>> handle.get()
        >>> handle.make(RowSchema({"done": (torch.bool, (1,))}), 6)
        Slab(shared, 6 rows of 8 bytes, lanes=2)
        >>> len(handle.get())
        6
    """

    def __init__(self, file: LazyFile, *, lanes: int = 1) -> None:
        self.lanes = lanes
        self._file = file
        self._slab: Slab | None = None

    @classmethod
    def shared(cls, *, lanes: int = 1) -> Self:
        """A slab to come in memory, for every process that is given the handle.

        Example:
            >>> LazySlab.shared(lanes=2).get() is None
            True
        """
        return cls(LazyFile.shared("rl-slab"), lanes=lanes)

    @classmethod
    def mapped(cls, path: str | os.PathLike[str], *, lanes: int = 1) -> Self:
        """A slab to come in a new file, which is there from now on, empty.

        Raises:
            OSError: The file is there already, or cannot be made.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     LazySlab.mapped(f"{folder}/a").get() is None
            True
        """
        return cls(LazyFile.mapped(path), lanes=lanes)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, lanes: int = 1) -> Self:
        """A slab to come, or made already, in a file that another process made with `mapped`.

        Raises:
            OSError: No such file, or no permission.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     first = LazySlab.mapped(f"{folder}/a")
            ...     LazySlab.open(f"{folder}/a").get() is None
            True
        """
        return cls(LazyFile.open(path), lanes=lanes)

    def make(
        self,
        schema: RowSchema,
        capacity: int,
        *,
        about: str = "",
        spare: int = 0,
        timeout_s: float = 5.0,
    ) -> Slab:
        """The slab, made now unless it was made before.

        Args:
            schema: What each row holds.
            capacity: How many rows.
            about: What else the others need to know of the rows; they find it in `Slab.about`.
            spare: How many spare rows, see `Slab.secure`.
            timeout_s: How long to wait for another who is making it.

        Returns:
            The slab, the same object every time in one process.

        Raises:
            ValueError: It was made with another schema, capacity, number of lanes, text or number
                of spare rows.
            OSError: Too little memory or disk.
            TimeoutError: A process that was stopped while it made the slab blocks the others.

        Example:
            >>> import torch
            >>> handle, schema = LazySlab.shared(), RowSchema({"done": (torch.bool, (1,))})
            >>> handle.make(schema, 5) is handle.make(schema, 5)
            True
        """
        manifest = Manifest(schema, capacity, self.lanes, about, spare)
        wanted = f"a slab of {capacity} rows of {schema.nbytes} bytes"
        if self._slab is None:
            head, promised = manifest.to_bytes(), manifest.promised
            self._file.fill(head, manifest.taken, wanted, promised=promised, timeout_s=timeout_s)
        slab = self._found()
        slab.schema.require_equal(schema)
        if (slab.capacity, slab.lanes) != (manifest.capacity, manifest.lanes):
            raise ValueError(
                f"the slab was made with {slab.capacity} rows in {slab.lanes} lanes, not "
                f"{manifest.capacity} in {manifest.lanes}: ask for the same."
            )
        if slab.spare != spare:
            raise ValueError(f"the slab was made with {slab.spare} spare rows, not {spare}.")
        if slab.about != about:
            raise ValueError(f"the slab was made for {slab.about!r}, not for {about!r}.")
        return slab

    def get(self) -> Slab | None:
        """The slab if anyone made it, else None.

        Raises:
            ValueError: The handle is closed.
        """
        if self._slab is None and not self._file.filled:
            return None
        return self._found()

    def close(self) -> None:
        """Let go of the file, and of the slab if there is one.

        Example:
            >>> LazySlab.shared().close()
        """
        if self._slab is not None:
            self._slab.close()
        self._slab = None
        self._file.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _attach, (type(self), self._file, self.lanes)

    def __repr__(self) -> str:
        return f"LazySlab({self._file.kind}, lanes={self.lanes}, {self._slab or 'not made here'})"

    def _found(self) -> Slab:
        if self._slab is None:
            file = self._file
            self._slab = Slab.over(LazyFile(file.duplicate(), file.kind, file.path))
        return self._slab


def _attach(kind: type[LazySlab], file: LazyFile, lanes: int) -> LazySlab:
    return kind(file, lanes=lanes)
