"""Rows in private, shared or mapped memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_slabs.arguments import as_device
from rl_slabs.memory.allocation import require_memory, take_space
from rl_slabs.memory.lazy_file import LazyFile
from rl_slabs.memory.manifest import WORDS_PER_LANE, Manifest
from rl_slabs.memory.memory import Kind, Memory
from rl_slabs.rows.rows import Rows, aligned
from rl_slabs.rows.selection import RowIndex
from rl_slabs.schema import RowSchema
from rl_tensordict.arguments import check_type
from rl_tensordict.types import NestedKey


class Slab:
    """A fixed number of rows of one schema, in memory that is zeroed and taken when it is made.

    Make one with `Slab.private` (this process), `Slab.shared` (any process that is given it) or
    `Slab.mapped` (a file, also one larger than memory); open a file again with `Slab.open`. Where
    the file is there before anyone knows what a row holds, the first of several processes makes the
    slab with `Slab.in_file`.

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
        about: Free text of the creator; see `in_file`.
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
        memory: Memory | None = None,
    ) -> None:
        file = None if memory is None else memory.file
        self.kind: Kind = "private" if file is None else file.kind
        self.schema = manifest.schema
        self.capacity = manifest.capacity
        self.lanes = manifest.lanes
        self.about = manifest.about
        self.spare = manifest.spare
        self.path = None if file is None else file.path
        self._rows: Rows | None = rows
        self._words: NDArray[np.int64] | None = words
        self._space: NDArray[np.int64] | None = None
        self._memory = memory
        if memory is not None and manifest.spare:
            # from the row before the first one to the end
            size = manifest.schema.row_bytes
            self._spare_at = len(memory) - manifest.promised
            start = self._spare_at - (manifest.capacity + 1) * size
            self._space = memory.array[start:].view(np.int64).reshape(-1, size // 8)

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
        memory = Memory.private(taken, promised=manifest.promised)
        return cls(manifest, Rows.over(schema, capacity, memory.array[start:]), words, memory)

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
        return cls._made(LazyFile.shared("rl-slab"), manifest)

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
        file = LazyFile.mapped(path)
        try:
            return cls._made(file, manifest)
        except BaseException:
            os.unlink(path)
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
        file = LazyFile.open(path)
        try:
            return cls.over(file)
        except BaseException:
            file.close()
            raise

    @classmethod
    def in_file(
        cls,
        file: LazyFile,
        schema: RowSchema,
        capacity: int,
        *,
        lanes: int = 1,
        spare: int = 0,
        about: str = "",
    ) -> Self:
        """A slab in a file that the first caller fills; later callers get the same one.

        A process that is killed while it makes the slab leaves none, and the next one makes it.

        Args:
            file: Filled already, or to be filled now; the slab's to close from here on.
            schema: What each row holds.
            capacity: How many rows.
            lanes: How many writers may share it; it divides `capacity`.
            spare: How many spare rows, see `secure`.
            about: What else the others need to know of the rows; they find it in `Slab.about`.

        Raises:
            TypeError: No open file, or no schema.
            ValueError: It was made with another schema, capacity, number of lanes, text or number
                of spare rows.
            OSError: Too little memory or disk.
            TimeoutError: A process that was stopped while it made the slab blocks the others.

        Example:
            >>> file = LazyFile.shared("an example")
            >>> schema = RowSchema({"done": (torch.bool, (1,))})
            >>> Slab.in_file(file, schema, 5).columns()["done"][3] = True
            >>> Slab.over(file).columns()["done"][:, 0].tolist()
            [False, False, False, True, False]
        """
        check_type("file", file, LazyFile, "an open file, as LazyFile.shared returns")
        manifest = Manifest(schema, capacity, lanes, about, spare)
        _fill(file, manifest)
        slab = cls.over(file)
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
        size = self.space.strides[0]  # which raises if there are none
        assert self._memory is not None
        self._memory.secure(self._spare_at + start * size, self._spare_at + stop * size, wanted)

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
        if self._memory is not None:
            self._memory.flush()

    def read_ahead(self) -> AbstractContextManager[None]:
        """Let the kernel read ahead of a pass over all rows, as copying them to a disk is.

        Elsewhere a mapped slab is read without: samples are rows anywhere in the file.

        Raises:
            ValueError: The slab is closed.

        Example:
            >>> with Slab.shared(RowSchema({"done": (torch.bool, (1,))}), 5).read_ahead():
            ...     pass
        """
        _ = self.rows
        return nullcontext() if self._memory is None else self._memory.read_ahead()

    def close(self) -> None:
        """Let go of the memory; once more is nothing.

        Example:
            >>> slab = Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)
            >>> slab.close()
            >>> slab.closed
            True
        """
        self._rows = self._words = self._space = None
        if self._memory is not None:
            self._memory.close()

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
        return self._in_file().fileno()

    def _in_file(self) -> LazyFile:
        if self._memory is None or self._memory.file is None:
            raise ValueError("a private slab has no file: make it with Slab.shared.")
        return self._memory.file

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
        _ = self.rows
        return type(self).over, (self._in_file(),)

    def __repr__(self) -> str:
        state = "closed " if self.closed else ""
        size = f"{self.capacity} rows of {self.schema.nbytes} bytes"
        return f"Slab({state}{self.kind}, {size}, lanes={self.lanes})"

    @classmethod
    def _made(cls, file: LazyFile, manifest: Manifest) -> Self:
        try:
            _fill(file, manifest)
        except BaseException:
            file.close()
            raise
        return cls.over(file)

    @classmethod
    def over(cls, file: LazyFile) -> Self:
        """The slab in an open file, which is the slab's to close once it is made.

        Where this raises, the file stays open for another try.

        Args:
            file: Filled with a slab.

        Raises:
            TypeError: No open file.
            ValueError: No slab, one of another version, altered, or cut short.
            OSError: Holes in a file that the disk cannot fill.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     schema = RowSchema({"done": (torch.bool, (1,))})
            ...     Slab.mapped(schema, 5, f"{folder}/a").close()
            ...     len(Slab.over(LazyFile.open(f"{folder}/a")))
            5
        """
        check_type("file", file, LazyFile, "an open file, as LazyFile.open returns")
        manifest = Manifest.read(file.fileno(), file.path or "the memory")
        taken, wanted = manifest.taken, _wanted(manifest)
        if file.kind == "mapped":
            # a copied file may have holes where the rows were zero
            take_space(file.fileno(), taken, wanted, promised=manifest.promised)
        memory = Memory.over(file, manifest.nbytes)
        count, start = manifest.lanes * WORDS_PER_LANE, manifest.words_offset
        words = memory.array[start : start + count * 8].view(np.int64)
        begin = manifest.rows_offset
        on_disk = file if file.kind == "mapped" else None
        block = memory.array[begin:]
        rows = Rows.over(manifest.schema, manifest.capacity, block, file=on_disk, offset=begin)
        return cls(manifest, rows, words.reshape(-1, WORDS_PER_LANE), memory)


def _fill(file: LazyFile, manifest: Manifest) -> None:
    head, promised = manifest.to_bytes(), manifest.promised
    file.fill(head, manifest.taken, _wanted(manifest), promised=promised)


def _wanted(manifest: Manifest) -> str:
    return f"a slab of {manifest.capacity} rows of {manifest.schema.nbytes} bytes"
