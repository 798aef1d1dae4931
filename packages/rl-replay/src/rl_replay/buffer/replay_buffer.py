"""The replay buffer: stores transitions, samples batches, and is indexed by row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_replay.buffer.batches import BatchMaker, Sample
from rl_replay.buffer.indexing import (
    IndexedRows,
    batch_of_one,
    coordinates,
    row_ids_at,
    written_index,
)
from rl_replay.buffer.parts import BufferParts, checked_size
from rl_replay.buffer.process_local import ProcessLocal
from rl_replay.buffer.transforms import Inverted
from rl_replay.buffer.writes import is_ours, store_arrays, store_in_place
from rl_replay.checkpoint.checkpoint import Checkpoint
from rl_replay.checkpoint.hooks import Hook
from rl_replay.data.collate import Collate, stacked
from rl_replay.data.pytree import count_elements
from rl_replay.edges import FOREIGN, edge, folder_name, note_given
from rl_replay.samplers import Sampler
from rl_replay.samplers.consuming import consuming
from rl_replay.storages import ListStorage, Storage
from rl_replay.writers import RoundRobinWriter, Writer
from rl_slabs import Span
from rl_slabs.internals import positive
from rl_tensordict import CPU
from rl_transforms import Compose, Transform, as_transform


class ReplayBuffer:
    """Stores transitions, samples batches of them, and is indexed like a tensor of rows.

    Data go through the inverse of the transforms in reverse order, then into the storage. Samples
    are gathered, marked, collated and transformed. Samples of tensordicts carry `"index"`, which
    `buffer[...]` takes, and `("collector", "row")`, the row id, which is never used again; trees
    and tensorclasses keep their form, and get those markers of slices for which they have leaves.
    Nothing that is passed in is ever changed. Any number of threads may use a buffer.

    Args:
        storage: Holds the rows; a list of 1000 objects unless given.
        sampler: Chooses the rows of a sample; uniformly unless given.
        writer: Decides which writes are allowed; all of them unless given.
        collate_fn: Makes a batch of what the storage returns: rows, or a list of objects.
        pin_memory: Copy samples to pinned memory, if there is a CUDA device.
        prefetch: Batches to make ahead of time, each in a thread of its own; needs `batch_size`.
            With a `generator` the samples are the same as without.
        transform: A transform, or a function of a batch.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        dim_extend: The dimension of the data along which the storage grows; its last unless given.
        generator: The source of randomness; torch's global one unless given.
        contiguous: Give each leaf of a sample memory of its own, as in-place writes under
            `torch.compile` need; otherwise leaves are views into the gathered rows.
        shared: Share the rows with the processes that the buffer is passed to, several of which may
            write at a time; `LazyTensorStorage` says how the capacity is divided.
        consume_after_n_samples: Draw each row so many times at most: a `ConsumingSampler`.

    Attributes:
        first_rows_timeout: Seconds that `sample` waits for the first row. 0 unless a producer that
            writes in the background sets it: then an empty buffer is an error at once.

    Raises:
        TypeError: A part of the wrong type, or a storage that cannot be shared.
        ValueError: Arguments that exclude each other.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        >>> buffer.extend(trajectories([3, 2])).tolist()
        [0, 1, 2, 3, 4]
        >>> len(buffer), buffer.sample()["collector", "row"].shape
        (5, torch.Size([4]))
    """

    # `add`, `extend` and `sample` do what `edge` does themselves, in one call less for each batch

    first_rows_timeout: float = 0.0
    _writer_class: ClassVar[type[Writer]] = RoundRobinWriter
    _info_in_sample: ClassVar[bool] = False  # whether samples hold what a sampler says of each row

    def __init__(  # noqa: PLR0913 - the parts that the seeds name
        self,
        *,
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        contiguous: bool = False,
        shared: bool = False,
        consume_after_n_samples: int | None = None,
    ) -> None:
        sampler = consuming(consume_after_n_samples, sampler, prefetch)
        local = ProcessLocal(positive(prefetch, "prefetch") if prefetch else 0)
        self._parts = BufferParts(
            local,
            storage=storage,
            sampler=sampler,
            writer=self._writer_class() if writer is None else writer,
            collate_fn=collate_fn,
            dim_extend=dim_extend,
            shared=shared,
        )
        self._batches = BatchMaker(
            self._parts,
            pin_memory=pin_memory,
            contiguous=contiguous,
            info_in_sample=self._info_in_sample,
        )
        self._rows = IndexedRows(self._parts)
        self._checkpoint = Checkpoint(self._parts, self._batches)
        self._parts.batch_size = checked_size(batch_size)
        if prefetch and batch_size is None:
            raise ValueError(f"prefetch={prefetch} needs a batch_size: say how many rows.")
        if self.sampler.drop_last and batch_size is None:
            raise ValueError("a sampler with drop_last needs a batch_size: say how many rows.")
        self.set_rng(generator)
        self._parts.fit()
        if transform is not None:
            self.append_transform(transform)

    @property
    def is_shared(self) -> bool:
        """Whether it was made with `shared=True`, so that several processes may write at a time."""
        return self._parts.is_shared

    @property
    def storage(self) -> Storage:
        """The storage, which holds the rows."""
        return self._parts.storage

    @property
    def sampler(self) -> Sampler:
        """The sampler, which chooses the rows of a sample."""
        return self._parts.sampler

    @property
    def writer(self) -> Writer:
        """The writer, which decides which writes are allowed."""
        return self._parts.writer

    @property
    def transform(self) -> Compose:
        """The transforms of samples, and in reverse of what is stored."""
        return self._parts.transform

    @property
    def batches(self) -> BatchMaker:
        """What draws and makes the batches, for ensembles of buffers."""
        return self._batches

    @property
    def dim_extend(self) -> int:
        """The dimension of the data along which the storage grows."""
        return self._parts.dim_extend

    @property
    def batch_size(self) -> int | None:
        """Rows of a sample, unless `sample` says otherwise."""
        return self._parts.batch_size

    @batch_size.setter
    def batch_size(self, size: int | None) -> None:
        parts = self._parts
        with parts.local.lock:
            parts.batch_size = checked_size(size)
            parts.changes += 1

    def add(self, data: Any) -> Any:
        """Store one element.

        Args:
            data: The element: with a storage of several dimensions, one step of all columns.

        Returns:
            Its index: an int, or `[columns, ndim]`; empty where a transform holds it back, None
            where the writer refuses it.

        Raises:
            KeyError: A leaf that is missing, or that the first rows did not have.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.

        Example:
            >>> buffer = ReplayBuffer()
            >>> buffer.add("a string!"), buffer.extend([30, None]).tolist(), len(buffer)
            (0, [1, 2], 3)
        """
        parts, storage = self._parts, self._parts.storage
        try:
            with parts.local.lock:
                if parts.checks_writes:
                    parts.writer.check(1)
                if parts.transform.changes or parts.writer.places_rows:
                    batch = batch_of_one(storage, data, parts.dim_extend)
                    index = _store(parts, batch, elements=True)
                    if parts.writer.places_rows and len(index) == 1 and index[0] < 0:
                        return None
                    return int(index) if storage.ndim == len(index) == 1 else index
                span = storage.add(data)
                _note_write(parts)
        except FOREIGN as error:
            note_given(error, f"{type(self).__name__}.add", data)
            raise
        if storage.arrangement.ndim > 1 and storage.columns:
            return coordinates(storage, _positions_of(span))
        return span.rows.start if isinstance(span.rows, slice) else int(span.rows[0])

    def extend(self, data: Any) -> torch.Tensor:
        """Store several elements.

        Args:
            data: Elements along the dimensions of the storage. A list is a list of elements, which
                are alike and each of which is what `add` takes; a tuple or dict is a tree whose
                leaves have these dimensions in front.

        Returns:
            Their indices, int64 `[n]` or `[n, ndim]`, in the order of the data; none if a
            transform holds all of them back, -1 where the writer refuses one.

        Raises:
            KeyError: A leaf that is missing, or that the first rows did not have.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape, no element, or more than there is room for.
            OSError: Too little memory or disk.

        Example:
            >>> from rl_replay import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> buffer.extend(torch.arange(3)), buffer.extend(torch.arange(2))
            (tensor([0, 1, 2]), tensor([3, 0]))
        """
        parts, storage = self._parts, self._parts.storage
        try:
            with parts.local.lock:
                if parts.checks_writes:
                    parts.writer.check(count_elements(data, storage.ndim))
                if isinstance(data, list) and not isinstance(storage, ListStorage):
                    return _store(parts, stacked(data, parts.dim_extend), elements=True)
                return _store(parts, data)
        except FOREIGN as error:
            note_given(error, f"{type(self).__name__}.extend", data)
            raise

    def extend_arrays(self, arrays: Mapping[tuple[str, ...], NDArray[Any]], count: int) -> bool:
        """Store rows of one environment from arrays, as a collector does that has no other use.

        `extend` of a tensordict of the same leaves does the same; this saves making one.

        Args:
            arrays: One for each leaf, `[count, ...]`, by key path; rows follow each other in time.
                They are copied.
            count: How many rows.

        Returns:
            False where nothing was stored and `extend` is to be called: of the first rows, of
            others than the stored ones, with transforms of writes, and for classes whose `extend`
            is their own.

        Example:
            >>> import numpy as np
            >>> from tensordict import TensorDict
            >>> from rl_replay import LazyTensorStorage
            >>> buffer, rewards = ReplayBuffer(storage=LazyTensorStorage(4)), np.ones(2, np.float32)
            >>> buffer.extend_arrays({("reward",): rewards}, 2)
            False
            >>> _ = buffer.extend(TensorDict({"reward": torch.zeros(1)}, [1]))
            >>> buffer.extend_arrays({("reward",): rewards}, 2), len(buffer)
            (True, 3)
        """
        # an `extend` of a subclass, or of this instance, sees or changes what is written
        if not is_ours(self.extend):
            return False
        with self._parts.local.lock:
            stored = store_arrays(self._parts, arrays, count)
            if stored:
                _note_write(self._parts)
        return stored

    def __len__(self) -> int:
        return len(self._parts.storage)

    @edge
    def __getitem__(self, index: Any) -> Any:
        """Rows as if the buffer were a tensor of them, or one of its leaves by key."""
        return self._rows.read(index)

    @edge
    def __setitem__(self, index: Any, value: Any) -> None:
        """Replaces rows, or one leaf of all rows, in place.

        Raises:
            KeyError: A leaf that is not stored.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.
        """
        with self._parts.local.lock:
            self._rows.write(index, value)

    @edge
    def update_rows(self, rows: torch.Tensor, tensordict: TensorDictBase) -> torch.Tensor:
        """Writes leaves of rows back, unless the rows were overwritten since.

        Markers are left out: those of a sample mark the ends of its slices, not of trajectories.

        Args:
            rows: Row numbers, as `("collector", "row")` of a sample holds them, int64 `[N]`.
            tensordict: Some of the leaves, `[N]`.

        Returns:
            Which rows were still stored and are written, bool `[N]`.

        Raises:
            KeyError: A leaf that is not stored, or none that could be written.
            TypeError: A storage without leaves, or a leaf of another dtype.
            ValueError: A leaf of another shape, or more or fewer rows than numbers.

        Example:
            >>> from tensordict import TensorDict
            >>> from rl_replay import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(3))
            >>> _ = buffer.extend(TensorDict({"a": torch.zeros(3)}, [3]))
            >>> _ = buffer.extend(TensorDict({"a": torch.zeros(1)}, [1]))
            >>> buffer.update_rows(torch.tensor([0, 1]), TensorDict({"a": torch.ones(2)}, [2]))
            tensor([False,  True])
        """
        return self._rows.update(rows, tensordict)

    @edge
    def update_priority(self, index: Any, priority: torch.Tensor | float) -> None:
        """Sets priorities of rows by index; does nothing where the sampler has none.

        Between a sample and this call the rows may have been overwritten: where that can be, pass a
        sample to `update_tensordict_priority`, which goes by row id.

        Args:
            index: As `extend` returns it, and samples hold it: int64 `[N]`, or `[N, ndim]`; or a
                tuple of an index for each dimension.
            priority: One for all, or one for each, `[N]`.

        Raises:
            IndexError: No row is stored there.
            ValueError: A priority that is negative or not finite, or too many or too few of them.
        """
        parts = self._parts
        with parts.local.lock:
            parts.sampler.update_priority(parts.storage, row_ids_at(parts.storage, index), priority)

    def empty(self) -> None:
        """Drop every row; what is written next may have other keys."""
        parts = self._parts
        with parts.local.lock:
            parts.require_writable(0)
            self._batches.rewind()
            parts.storage.empty()
            parts.sampler.reset()
            parts.fit()

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draw a batch.

        Args:
            batch_size: How many rows; those of the constructor unless given.
            return_info: Return a dict with information about the rows as well.
            timeout: Seconds to wait for the first row of an empty buffer, as after the start of a
                collector in the background; `first_rows_timeout` unless given.

        Returns:
            The batch, or the batch and a dict with "index" and "row" of each of its rows, and the
            entries of the sampler.

        Raises:
            ValueError: No batch size, one below 1 or one that does not fit the sampler, or an empty
                buffer.
            TypeError: The batch size is no integer.
            TimeoutError: No row came in time.
        """
        parts = self._parts
        size = parts.batch_size if batch_size is None else positive(batch_size, "batch_size")
        limit = self.first_rows_timeout if timeout is None else timeout
        try:
            if limit:
                parts.local.require_rows(parts.storage, limit)
            batch, info, _ = self._batches.next_batch(size)
        except FOREIGN as error:
            note_given(error, f"{type(self).__name__}.sample", batch_size, return_info, timeout)
            if not len(parts.storage):
                parts.transform.note_held(error)
            raise
        return (batch, info) if return_info else batch

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end of an epoch; without end where the sampler knows none."""
        size = self._parts.batch_size
        sample = Sample(None, {}, last=False)
        while not sample.last:
            sample = self._batches.next_batch(size)
            yield sample.rows

    @property
    def write_count(self) -> int:
        """Rows ever written, overwritten ones among them."""
        storage = self._parts.storage
        storage.sync()
        return storage.ring.written

    @edge
    def wait_until(self, rows: int, timeout: float | None = None) -> None:
        """Wait until the buffer holds some rows, written by other threads or processes.

        Args:
            rows: How many.
            timeout: Seconds to wait at most; forever unless given.

        Raises:
            ValueError: More rows than the buffer can hold.
            TimeoutError: They did not come.

        Example:
            >>> buffer = ReplayBuffer()
            >>> _ = buffer.extend([1, 2])
            >>> buffer.wait_until(2, timeout=1.0)
        """
        self._parts.local.wait_until(self._parts.storage, rows, timeout)

    @edge
    def append_transform(
        self, transform: Transform | Callable[[Any], Any], *, invert: bool = False
    ) -> Any:
        """Adds a transform after the others.

        Args:
            transform: A transform, or a function of a batch.
            invert: Exchange its two directions: `inv` for samples, `forward` for what is stored.

        Returns:
            The buffer.

        Raises:
            TypeError: Neither a transform nor a function.
            ValueError: A transform that cannot work in a buffer.
        """
        return self.insert_transform(len(self.transform), transform, invert=invert)

    @edge
    def insert_transform(
        self, index: int, transform: Transform | Callable[[Any], Any], *, invert: bool = False
    ) -> Any:
        """Adds a transform before the one at a place.

        Args:
            index: The place, counted from 0.
            transform: A transform, or a function of a batch.
            invert: Exchange its two directions: `inv` for samples, `forward` for what is stored.

        Returns:
            The buffer.

        Raises:
            TypeError: Neither a transform nor a function.
            ValueError: A transform that cannot work in a buffer.
            IndexError: There is no such place.
        """
        made = as_transform(transform)
        made.check_place("buffer")
        with self._parts.local.lock:
            self._parts.transform.insert(index, Inverted(made) if invert else made)
        return self

    @edge
    def set_storage(self, storage: Storage, collate_fn: Collate | None = None) -> Storage:
        """Exchange the storage.

        Args:
            storage: The new one.
            collate_fn: Makes a batch of what it returns.

        Returns:
            The old one.

        Raises:
            TypeError: No storage, or one that cannot be shared where the buffer is.
            ValueError: It does not go with the writer.
            KeyError: It lacks a column that the sampler finds trajectories by.
            RuntimeError: Its rows were written along another dimension than `dim_extend`.
        """
        with self._parts.local.lock:
            self._batches.rewind()
            return self._parts.set_storage(storage, collate_fn)

    @edge
    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchange the sampler.

        Args:
            sampler: The new one.

        Returns:
            The old one.

        Raises:
            TypeError: No sampler.
            KeyError: There is no column that it finds trajectories by.
        """
        with self._parts.local.lock:
            self._batches.rewind()
            return self._parts.set_sampler(sampler)

    @edge
    def set_writer(self, writer: Writer) -> Writer:
        """Exchange the writer.

        Args:
            writer: The new one.

        Returns:
            The old one.

        Raises:
            TypeError: No writer.
            ValueError: It does not go with the storage.
        """
        with self._parts.local.lock:
            self._batches.rewind()
            return self._parts.set_writer(writer)

    @edge
    def set_rng(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Exchange the generator of random numbers.

        Args:
            generator: The new one; None for torch's own.

        Returns:
            The old one.

        Raises:
            TypeError: No generator.
        """
        with self._parts.local.lock:
            self._batches.rewind()
            return self._parts.set_generator(generator)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next samples depend on, rows included, for `torch.save`.

        `dumps` keeps large buffers better.
        """
        return self._checkpoint.state()

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of another buffer.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: No such state, or that of a buffer of other parts or another size; nothing
                has changed then.
        """
        self._checkpoint.load_state(state)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Writes the buffer to a folder: rows, sampler, writer, transforms and generator.

        Only stored rows take room. A dump that is there already is replaced when the other one is
        safe on the disk, so that a kill leaves one or the other.
        Other processes may continue to write a shared buffer: rows that they overwrite meanwhile
        are left out.

        Args:
            path: The folder; created if missing.

        Raises:
            NotImplementedError: A storage of any objects, which only pickles could keep.
            RuntimeError: A shared lossless buffer to which others wrote in the meantime.
            OSError: Too little space, or no way to write there.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from rl_replay import LazyTensorStorage, ReplayBuffer
            >>> first, second = (ReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2))
            >>> _ = first.extend(torch.arange(5))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     first.dumps(folder)
            ...     second.loads(folder)
            >>> second[:]
            tensor([0, 1, 2, 3, 4])
        """
        self._checkpoint.dump(folder_name(path))

    def loads(self, path: str | os.PathLike[str], *, rows_only: bool = False) -> None:
        """Restores a buffer that was written to a folder: the next samples are the same.

        In a storage of another size, or of another number of lanes, rows keep their order and an
        epoch begins anew.

        Args:
            path: The folder.
            rows_only: Restore the rows alone. Sampler, writer, transforms, batch size and generator
                stay those of this buffer, and an epoch begins anew: so one program samples in its
                own way the rows that another one collected.

        Raises:
            FileNotFoundError: There is no dump.
            RuntimeError: Other processes hold lanes of a shared buffer.
            ValueError: A dump that was truncated or altered, of another version, or of a buffer of
                other parts.
            TypeError: `rows_only` is no bool.
            OSError: Too little memory or disk.
        """
        name = folder_name(path)
        if not isinstance(rows_only, bool):
            raise TypeError(f"rows_only: expected True or False, got {rows_only!r}.")
        self._checkpoint.load(name, rows_only=rows_only)

    dump = save = dumps
    load = loads

    @edge
    def register_save_hook(self, hook: Hook) -> None:
        """Adds a function that changes the rows that `dumps` writes; only rows are written then.

        Args:
            hook: From all rows, the oldest first, to the tensordict to write: `[len(buffer)]`, or
                `[*B, T]` from a storage of several dimensions. `rl_layout.TED2Flat` is one.
        """
        self._checkpoint.save_hooks.append(hook)

    def register_load_hook(self, hook: Hook) -> None:
        """Adds a function that restores the rows from what save hooks made of them.

        Args:
            hook: From the tensordict that was written to the rows to extend an empty buffer by, the
                oldest first. `rl_layout.Flat2TED` is one.
        """
        self._checkpoint.load_hooks.append(hook)

    def stats(self) -> dict[str, float]:
        """Returns figures: rows, trajectories, the share of rows that continue another, redraws.

        Example:
            >>> ReplayBuffer().stats()["size"]
            0
        """
        with self._parts.local.lock:
            return self.storage.stats() | self._batches.stats() | self.sampler.stats()

    def explain(self) -> str:
        """Describes what is stored, which columns mark boundaries, and the memory that it takes.

        Example:
            >>> print(ReplayBuffer().explain())
            ReplayBuffer
              ListStorage: 0 of 1000 rows
              RandomSampler(), RoundRobinWriter(), no transforms
        """
        with self._parts.local.lock:
            lines = self._parts.explain()
        return "\n".join([type(self).__name__, *(f"  {line}" for line in lines)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.storage.session.require_portable("this buffer")
        return object.__reduce_ex__(self, protocol)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage!r}, {self.sampler!r}, {self.writer!r})"


def _store(parts: BufferParts, data: Any, *, elements: bool = False) -> torch.Tensor:
    """Stores a batch, of `elements` or of rows, and returns the index of its rows."""
    storage = parts.storage
    if parts.writer.places_rows:
        index = store_in_place(parts, data, elements=elements)
        _note_write(parts)
        return index
    if elements or parts.transform.changes:
        span = parts.transform.store(storage, data, elements=elements)
    else:
        span = storage.extend(data)
    if span is None:  # transforms hold all of it back
        shape = (0,) if storage.ndim == 1 else (0, storage.ndim)
        return torch.empty(shape, dtype=torch.int64, device=CPU)
    _note_write(parts)
    positions = _positions_of(span)
    several = storage.arrangement.ndim > 1 and storage.columns
    return written_index(storage, positions, parts.dim_extend) if several else positions


def _note_write(parts: BufferParts) -> None:
    """Invalidates prefetched batches, and wakes the threads that wait for rows."""
    parts.changes += 1
    if parts.local.waiting:
        parts.local.written.notify_all()


def _positions_of(span: Span) -> torch.Tensor:
    """The positions of the rows of a write, int64 `[n]`."""
    rows = span.rows
    # numpy takes half of torch's time
    return torch.from_numpy(np.arange(rows.start, rows.stop)) if isinstance(rows, slice) else rows
