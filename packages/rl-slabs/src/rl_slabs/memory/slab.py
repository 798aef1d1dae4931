"""Rows in private, shared or mapped memory."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_slabs.arguments import as_device
from rl_slabs.memory.allocation import require_memory, take_piece, take_space
from rl_slabs.memory.handle import FileHandle
from rl_slabs.memory.manifest import WORDS_PER_LANE, Manifest
from rl_slabs.regular_file import open_regular, path_name
from rl_slabs.rows.gather import zeroed
from rl_slabs.rows.rows import Rows, aligned
from rl_slabs.rows.selection import RowIndex
from rl_slabs.schema import RowSchema
from rl_tensordict.types import NestedKey

Kind = Literal["private", "shared", "mapped"]


class Slab:
    """A fixed number of rows of one schema, in memory that is zeroed and taken when it is made.

    Make one with `Slab.private` (this process), `Slab.shared` (any process that is given it) or
    `Slab.mapped` (a file, also one larger than memory); open a file again with `Slab.open`.

    A shared or mapped slab is handed to another process by passing it: as an argument of a
    process in any start method, or through a queue or pipe while the sender keeps it open.
    Shared memory is a file without a name: it is gone when the last process that holds it is,
    however that ends.

    `close()`, or the end of a `with` block, lets go of the memory; it is unmapped when the last
    tensor into it is gone, so no tensor ever points nowhere. A slab that is merely dropped is
    closed as well.

    A slab takes no locks. Several writers, or readers concurrent with a writer, use `Lanes`.

    Attributes:
        kind: "private", "shared" or "mapped".
        schema: What each row holds.
        capacity: How many rows.
        lanes: Into how many lanes they are divided, for `Lanes`.
        about: Free text of the creator; see `LazySlab.make`.
        spare: Number of spare rows after the rows, for the layer above.
        path: The file of a mapped slab as it was named, else None.

    Example:
        >>> schema = RowSchema({"reward": (torch.float32, (1,))})
        >>> with Slab.shared(schema, capacity=5) as slab:
        ...     slab.write(slice(0, 2), TensorDict({"reward": torch.ones(2, 1)}))
        ...     slab.read(torch.tensor([1, 4]))["reward"].tolist()
        [[1.0], [0.0]]
    """

    def __init__(
        self,
        manifest: Manifest,
        rows: Rows,
        words: NDArray[np.int64],
        *,
        kind: Kind = "private",
        path: str | None = None,
        space: NDArray[np.int64] | None = None,
    ) -> None:
        self.kind = kind
        self.schema = manifest.schema
        self.capacity = manifest.capacity
        self.lanes = manifest.lanes
        self.about = manifest.about
        self.spare = manifest.spare
        self.path = path
        self._rows: Rows | None = rows
        self._words: NDArray[np.int64] | None = words
        self._space: NDArray[np.int64] | None = space
        self._map: mmap.mmap | None = None
        self._descriptor = -1
        self._spare_at = 0  # where spare rows begin in the file
        self._close_descriptor: Any = None

    @classmethod
    def private(
        cls,
        schema: RowSchema,
        capacity: int,
        *,
        lanes: int = 1,
        spare: int = 0,
        device: torch.device | str | None = None,
    ) -> Self:
        """A slab for the threads of this process.

        Args:
            schema: What each row holds.
            capacity: How many rows.
            lanes: How many writers may share it; it divides `capacity`.
            spare: How many spare rows, see `secure`.
            device: Where the rows live; the CPU unless given. Spare ones lie only there.

        Raises:
            ValueError: A count below 1, a capacity that the lanes cannot share evenly, or spare
                rows on a device or of leaves that are not all packed.
            TypeError: `schema` is no schema.
            OSError: Too little memory.

        Example:
            >>> Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)
            Slab(private, 5 rows of 8 bytes, lanes=1)
        """
        manifest = Manifest(schema, capacity, lanes, spare=spare)
        words = np.zeros((lanes, WORDS_PER_LANE), dtype=np.int64)
        if as_device(device).type != "cpu":
            if spare:
                raise ValueError(f"spare rows are on the CPU, got device {device}: use spare=0.")
            return cls(manifest, Rows.zeros(schema, capacity, device=device), words)
        require_memory(manifest.taken, _wanted(manifest))
        if not spare:
            return cls(manifest, Rows.zeros(schema, capacity), words)
        start = aligned(schema.row_bytes)
        taken = start + capacity * schema.row_bytes
        memory = zeroed(taken, promised=manifest.promised)
        rows = Rows.over(schema, capacity, memory[start:])
        return cls(manifest, rows, words, space=_space(manifest, memory, start))

    @classmethod
    def shared(cls, schema: RowSchema, capacity: int, *, lanes: int = 1, spare: int = 0) -> Self:
        """A slab for every process that is given it.

        The memory is a file that never has a name, so `/dev/shm` and its limit play no part and
        no file is left over; it counts as memory of the container.

        Args:
            schema: What each row holds.
            capacity: How many rows.
            lanes: How many writers may share it; it divides `capacity`.
            spare: How many spare rows, see `secure`.

        Raises:
            ValueError: A count below 1, a capacity that the lanes cannot share evenly, or spare
                rows of leaves that are not all packed.
            TypeError: `schema` is no schema.
            OSError: Too little memory.

        Example:
            >>> Slab.shared(RowSchema({"done": (torch.bool, (1,))}), 6, lanes=3)
            Slab(shared, 6 rows of 8 bytes, lanes=3)
        """
        manifest = Manifest(schema, capacity, lanes, spare=spare)
        require_memory(manifest.taken, _wanted(manifest))
        descriptor = os.memfd_create("rl-slab", os.MFD_CLOEXEC)
        return cls._fill(descriptor, manifest, "shared", None)

    @classmethod
    def mapped(
        cls,
        schema: RowSchema,
        capacity: int,
        path: str | os.PathLike[str],
        *,
        lanes: int = 1,
        spare: int = 0,
    ) -> Self:
        """A slab in a new file, which may be larger than memory and outlives the processes.

        What is written is in the file when the process is killed, but after a power failure only
        what was there at the last `flush()`. The file may be unlinked while it is in use.

        Args:
            schema: What each row holds.
            capacity: How many rows.
            path: A file that is not there yet.
            lanes: How many writers may share it; it divides `capacity`.
            spare: How many spare rows, see `secure`.

        Raises:
            ValueError: A count below 1, a capacity that the lanes cannot share evenly, or spare
                rows of leaves that are not all packed.
            TypeError: `schema` is no schema.
            OSError: Too little space, a file that is there already, or no way to write there.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     slab = Slab.mapped(RowSchema({"done": (torch.bool, (1,))}), 5, f"{folder}/a")
            ...     slab.kind
            'mapped'
        """
        manifest = Manifest(schema, capacity, lanes, spare=spare)
        name = path_name(path)
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise FileExistsError(
                error.errno, f"{name} is there already: use Slab.open, or remove it", name
            ) from None
        try:
            return cls._fill(descriptor, manifest, "mapped", os.path.abspath(name))
        except BaseException:
            os.unlink(name)
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The slab that a file holds, rows, words and all.

        Raises:
            ValueError: No slab, one of another version, altered, or cut short; no regular file.
            OSError: No such file, no permission, or holes in it that the disk cannot fill.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     schema = RowSchema({"done": (torch.bool, (1,))})
            ...     Slab.mapped(schema, 5, f"{folder}/a").close()
            ...     Slab.open(f"{folder}/a").schema == schema
            True
        """
        name = path_name(path)
        descriptor = open_regular(name, os.O_RDWR)
        return cls._map_file(descriptor, name, "mapped", os.path.abspath(name))

    @property
    def rows(self) -> Rows:
        """The rows themselves.

        Raises:
            ValueError: The slab is closed.
        """
        if self._rows is None:
            raise ValueError("this slab is closed: open it again, or keep it open while in use.")
        return self._rows

    @property
    def words(self) -> NDArray[np.int64]:
        """The words of the lanes, `[lanes, 8]`, live and aligned to cache lines; see `Lanes`.

        Raises:
            ValueError: The slab is closed.
        """
        if self._words is None:
            raise ValueError("this slab is closed: open it again, or keep it open while in use.")
        return self._words

    @property
    def space(self) -> NDArray[np.int64]:
        """One live address space: an unused row, the packed rows, the spare rows.

        int64 `[1 + capacity + spare, schema.row_bytes / 8]`. So a layer that keeps data next to the
        rows reads either by one gather, and has an address left for what is nowhere.

        Raises:
            ValueError: There are no spare rows, or the slab is closed.
        """
        _ = self.rows
        if self._space is None:
            raise ValueError("there are no spare rows: make the slab with spare=.")
        return self._space

    @property
    def spare_rows(self) -> Rows:
        """The spare rows, those included that are not secured yet.

        Raises:
            ValueError: As `space`.
        """
        return Rows(self.schema, torch.from_numpy(self.space[1 + self.capacity :]), {})

    def secure(self, start: int, stop: int, wanted: str) -> None:
        """Nothing where the spare rows `[start, stop)` may be touched from now on, by anyone.

        They are zero until somebody writes them.

        Args:
            start: The first spare row, counted from 0.
            stop: One past the last.
            wanted: What they are for, for the message.

        Raises:
            ValueError: As `space`.
            OSError: Too little memory or disk.

        Example:
            >>> schema = RowSchema({"reward": (torch.float32, (1,))})
            >>> slab = Slab.shared(schema, 5, spare=1_000_000)
            >>> slab.secure(0, 7, "an example")
            >>> slab.spare_rows.columns()["reward"][:7] = 1
            >>> slab.space.shape
            (1000006, 1)
        """
        first, last = (self._spare_at + row * self.space.strides[0] for row in (start, stop))
        take_piece(self._descriptor, first, last, wanted, on_disk=self.kind == "mapped")

    @property
    def closed(self) -> bool:
        """Whether the slab has let go of its memory."""
        return self._rows is None

    def read(
        self,
        rows: RowIndex,
        *,
        keys: Sequence[NestedKey] | None = None,
        contiguous: bool = False,
        device: torch.device | str | None = None,
    ) -> TensorDict:
        """A copy of some rows, in one gather of the packed leaves; see `Rows.read`.

        Example:
            >>> slab = Slab.private(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> slab.read(np.array([4, 0])).batch_size
            torch.Size([2])
        """
        return self.rows.read(rows, keys=keys, contiguous=contiguous, device=device)

    def write(
        self, rows: RowIndex, source: TensorDictBase, *, keys: Sequence[NestedKey] | None = None
    ) -> None:
        """Copy a tensordict into some rows; see `Rows.write`.

        Example:
            >>> slab = Slab.private(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> slab.write(3, TensorDict({"reward": torch.ones(1)}))
        """
        self.rows.write(rows, source, keys=keys)

    def view(self) -> TensorDict:
        """All rows as live views; see `Rows.view`.

        Example:
            >>> Slab.private(RowSchema({"reward": (torch.float32, (1,))}), 5).view().batch_size
            torch.Size([5])
        """
        return self.rows.view()

    def columns(self) -> dict[NestedKey, NDArray[Any]]:
        """One live numpy array for each leaf, `[capacity, *shape]`; see `Rows.columns`.

        Example:
            >>> slab = Slab.private(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> slab.columns()["reward"][3] = 2
        """
        return self.rows.columns()

    def flush(self) -> None:
        """Wait until a mapped slab's rows are on the disk; nothing for the other kinds.

        Raises:
            ValueError: The slab is closed.

        Example:
            >>> Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5).flush()
        """
        _ = self.rows
        if self._map is not None and self.kind == "mapped":
            self._map.flush()
            os.fsync(self._descriptor)

    @contextmanager
    def read_ahead(self) -> Iterator[None]:
        """Let the kernel read ahead of a pass over all rows, as copying them to a disk is.

        Elsewhere a mapped slab is read without: samples are rows anywhere in the file.

        Raises:
            ValueError: The slab is closed.

        Example:
            >>> with Slab.shared(RowSchema({"done": (torch.bool, (1,))}), 5).read_ahead():
            ...     pass
        """
        _ = self.rows
        memory = self._map if self.kind == "mapped" else None
        if memory is not None:
            memory.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            if memory is not None:
                memory.madvise(mmap.MADV_RANDOM)

    def close(self) -> None:
        """Let go of the memory; once more is nothing.

        Example:
            >>> slab = Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)
            >>> slab.close()
            >>> slab.closed
            True
        """
        self._rows = self._words = self._space = self._map = None
        if self._close_descriptor is not None:
            self._close_descriptor()

    def fileno(self) -> int:
        """File descriptor of a shared or mapped slab, for `flock` and the like.

        Raises:
            ValueError: The slab is private or closed.

        Example:
            >>> with Slab.shared(RowSchema({"done": (torch.bool, (1,))}), 5) as slab:
            ...     slab.fileno() > 2
            True
        """
        _ = self.rows
        if self._descriptor < 0:
            raise ValueError("a private slab has no file: make it with Slab.shared.")
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.capacity

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "private":
            raise TypeError(
                "a private slab stays in its process: make it with Slab.shared or Slab.mapped to "
                "hand it to another one."
            )
        return _attach, (FileHandle(self.fileno()), self.kind, self.path)

    def __repr__(self) -> str:
        state = "closed " if self.closed else ""
        size = f"{self.capacity} rows of {self.schema.nbytes} bytes"
        return f"Slab({state}{self.kind}, {size}, lanes={self.lanes})"

    @classmethod
    def _fill(cls, descriptor: int, manifest: Manifest, kind: Kind, path: str | None) -> Self:
        try:
            _take(descriptor, manifest)
            # last, so that a file whose making was cut off is no slab
            os.pwrite(descriptor, manifest.to_bytes(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls._map_file(descriptor, path or "the memory", kind, path)

    @classmethod
    def _map_file(cls, descriptor: int, name: str, kind: Kind, path: str | None) -> Self:
        """A slab over an open file, which from here on is the slab's to close."""
        try:
            manifest = Manifest.read(descriptor, name)
            if kind == "mapped":
                # a copied file may have holes where the rows were zero
                _take(descriptor, manifest)
            memory = mmap.mmap(descriptor, manifest.nbytes)
            if kind == "mapped":
                # samples are rows anywhere: what the kernel reads ahead of them is not wanted
                memory.madvise(mmap.MADV_RANDOM)
            # numpy holds on to the mmap, so closing it under a tensor cannot happen
            whole = np.frombuffer(memory, dtype=np.uint8)
            count = manifest.lanes * WORDS_PER_LANE
            words = whole[manifest.words_offset :][: count * 8].view(np.int64)
            rows = Rows.over(manifest.schema, manifest.capacity, whole[manifest.rows_offset :])
            space = _space(manifest, whole, manifest.rows_offset) if manifest.spare else None
            words = words.reshape(-1, WORDS_PER_LANE)
            slab = cls(manifest, rows, words, kind=kind, path=path, space=space)
        except BaseException:
            os.close(descriptor)
            raise
        slab._map = memory
        slab._spare_at = manifest.taken
        slab._descriptor = descriptor
        slab._close_descriptor = weakref.finalize(slab, os.close, descriptor)
        return slab


def _attach(handle: FileHandle, kind: Kind, path: str | None) -> Slab:
    return map_slab(handle.open(), path or "the memory", kind, path)


def map_slab(descriptor: int, name: str, kind: Kind, path: str | None) -> Slab:
    """A slab over an open file, which from here on is the slab's to close."""
    return Slab._map_file(descriptor, name, kind, path)


def _take(descriptor: int, manifest: Manifest) -> None:
    take_space(descriptor, manifest.taken, _wanted(manifest), promised=manifest.promised)


def _space(manifest: Manifest, memory: NDArray[np.uint8], start: int) -> NDArray[np.int64]:
    """Rows from the one before byte `start` to the end."""
    size = manifest.schema.row_bytes
    stop = start + (manifest.capacity + manifest.spare) * size
    return memory[start - size : stop].view(np.int64).reshape(-1, size // 8)


def _wanted(manifest: Manifest) -> str:
    return f"a slab of {manifest.capacity} rows of {manifest.schema.nbytes} bytes"
