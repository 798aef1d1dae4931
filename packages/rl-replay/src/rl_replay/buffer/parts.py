"""What a buffer is made of, and how its parts are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import torch

from rl_replay.buffer.prefetch import DrawnFrom
from rl_replay.buffer.process_local import InProcess
from rl_replay.data.collate import Collate, stack
from rl_replay.edges import edge
from rl_replay.samplers import RandomSampler, Sampler
from rl_replay.storages import LazyTensorStorage, ListStorage, Storage, TensorStorage
from rl_replay.writers import ImmutableDatasetWriter, RoundRobinWriter, Writer
from rl_slabs.internals import positive
from rl_transforms import CallableTransform, Compose, Transform, as_transform

Part = TypeVar("Part")


class Composition(InProcess):
    """The parts of a buffer under one lock, and a count of everything that changed them.

    Args:
        storage: Where rows live; a list of 1000 objects unless given.
        sampler: Which rows a sample holds; uniform unless given.
        writer: Whether and what may be written; round robin unless given.
        collate_fn: Makes a batch of what the storage returns.
        prefetch: Batches to make ahead.
        batch_size: Rows of a sample.
        dim_extend: The dimension of the data along which the storage grows.
        generator: Where randomness comes from.
        shared: Let other processes that are given the buffer see the same rows.

    Raises:
        TypeError: A part of the wrong type.
        ValueError: Settings that do not go together.
    """

    def __init__(  # noqa: PLR0913 - the parts that the seeds name
        self,
        *,
        storage: Storage | None,
        sampler: Sampler | None,
        writer: Writer | None,
        collate_fn: Collate | None,
        prefetch: int | None,
        batch_size: int | None,
        dim_extend: int | None,
        generator: torch.Generator | None,
        shared: bool,
    ) -> None:
        super().__init__(positive(prefetch, "prefetch") if prefetch else 0)
        self._shared = shared
        self._changes = 0
        # an empty storage is falsy
        self._storage = _checked(storage, Storage, lambda: ListStorage(1000))
        if shared:
            self._storage.share()
        self._sampler = _checked(sampler, Sampler, RandomSampler)
        self._writer = _checked(writer, Writer, self._default_writer)
        self._collate = _collate_of(self._storage, collate_fn)
        self._transform = BufferTransforms()
        self._batch_size = _size(batch_size)
        if prefetch and batch_size is None:
            raise ValueError(f"prefetch={prefetch} needs a batch_size: say how many rows.")
        if self._sampler.drop_last and batch_size is None:
            raise ValueError("a sampler with drop_last needs a batch_size: say how many rows.")
        self._asked_dim = dim_extend
        self._dim_extend = _dim_of(self._storage, dim_extend)
        self._storage.arrange(self._dim_extend)
        self.set_rng(generator)
        self._fit()

    @property
    def is_shared(self) -> bool:
        """Whether it was made with `shared=True`, so that several processes may write at a time."""
        return self._shared

    @property
    def _stamp(self) -> tuple[int, int, int]:
        """Changes of this process, and rows dropped or loaded by any: older batches are stale."""
        return self._changes, self._transform.changes, self._storage.epoch

    @property
    def storage(self) -> Storage:
        """Where rows live."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """Which rows a sample holds."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """Whether and what may be written."""
        return self._writer

    @property
    def transform(self) -> Compose:
        """What samples, and in reverse data that are stored, go through."""
        return self._transform

    @property
    def dim_extend(self) -> int:
        """The dimension of the data along which the storage grows."""
        return self._dim_extend

    @property
    def batch_size(self) -> int | None:
        """Rows of a sample, unless `sample` says otherwise."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: int | None) -> None:
        with self._lock:
            self._batch_size = _size(size)
            self._changed()

    @edge
    def append_transform(
        self, transform: Transform | Callable[[Any], Any], *, invert: bool = False
    ) -> Any:
        """Put a transform after the others.

        Args:
            transform: A transform, or a function of a batch.
            invert: Exchange its two directions.

        Returns:
            The buffer.

        Raises:
            TypeError: Neither a transform nor a function.
            ValueError: A transform that cannot work in a buffer.
        """
        return self.insert_transform(len(self._transform), transform, invert=invert)

    @edge
    def insert_transform(
        self, index: int, transform: Transform | Callable[[Any], Any], *, invert: bool = False
    ) -> Any:
        """Put a transform ahead of the one at a place.

        Args:
            index: The place.
            transform: A transform, or a function of a batch.
            invert: Exchange its two directions.

        Returns:
            The buffer.

        Raises:
            TypeError: Neither a transform nor a function.
            ValueError: A transform that cannot work in a buffer.
            IndexError: There is no such place.
        """
        made = as_transform(transform)
        made.check_place("buffer")
        with self._lock:
            self._transform.insert(index, Inverted(made) if invert else made)
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
            RuntimeError: Its rows lie along another dimension than the buffer's `dim_extend`.
        """
        with self._exchanging():
            _require_order(_checked(storage, Storage), self._writer)
            dim = _dim_of(storage, self._asked_dim)
            collate = _collate_of(storage, collate_fn)
            storage.arrange(dim)
            if self._shared:
                storage.share()
            old, self._storage = self._storage, storage
            self._collate, self._dim_extend = collate, dim
        self._sampler.reset()
        return old

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
        with self._exchanging():
            old, self._sampler = self._sampler, _checked(sampler, Sampler)
            sampler.generator = self._generator
        return old

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
        with self._exchanging():
            old, self._writer = self._writer, _checked(writer, Writer)
        return old

    @edge
    def set_rng(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Exchange the generator that samples are drawn from.

        Args:
            generator: The new one; None for torch's own.

        Returns:
            The old one.

        Raises:
            TypeError: No generator.
        """
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(
                f"generator must be a torch.Generator, got {type(generator).__name__}: use "
                "torch.Generator().manual_seed(seed)."
            )
        with self._lock:
            self._rewind()
            old: torch.Generator | None = getattr(self, "_generator", None)
            self._generator = self._sampler.generator = generator
            self._changed()
        return old

    def _default_writer(self) -> Writer:
        return RoundRobinWriter()

    def _fit(self) -> None:
        """Let the parts know each other."""
        storage, writer = self._storage, self._writer
        _require_order(storage, writer)
        if isinstance(writer, ImmutableDatasetWriter) and _is_of_given_tensors(storage):
            storage.fill()
        storage.mark(list(self._sampler.id_keys), list(self._sampler.end_keys))
        storage.keep_index(self._sampler.draws_slices)
        self._changed()

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Exchange parts; where they do not go together the former ones stay."""
        with self._lock:
            self._rewind()
            former = self._storage, self._collate, self._dim_extend, self._sampler, self._writer
            try:
                yield
                self._fit()
            except BaseException:
                parts = former
                self._storage, self._collate, self._dim_extend, self._sampler, self._writer = parts
                self._fit()
                raise

    def _changed(self) -> None:
        """Invalidates prefetched batches."""
        self._changes += 1

    def _drawn_from(self) -> DrawnFrom:
        """What the next choice of rows depends on, alongside the rows."""
        return DrawnFrom(self._sampler.state_dict(), self._rng())

    def _rewind(self) -> None:
        """Forget the batches prefetched, as if their rows had never been chosen."""
        ahead = None if self._prefetch is None else self._prefetch.drop()
        if ahead is None:
            return
        before, rng_after = ahead
        self._sampler.load_state_dict(before.sampler)
        generator = self._generator
        if generator is None or before.rng is None or rng_after is None:
            return
        if torch.equal(generator.get_state(), rng_after):  # else somebody has seeded it since
            generator.set_state(before.rng)

    def _rng(self) -> torch.Tensor | None:
        return None if self._generator is None else self._generator.get_state()


class BufferTransforms(Compose):
    """The transforms of a buffer, which can be put in after its back."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def insert(self, index: int, transform: Transform | Callable[[Any], Any]) -> Compose:
        """Add a transform that works in a buffer; see `Compose.insert`."""
        made = as_transform(transform)
        made.check_place("buffer")
        super().insert(index, made)
        self.changes += 1
        return self


class Inverted(Transform):
    """A transform whose two directions are exchanged."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.inner = transform

    def forward(self, batch: Any) -> Any:
        """What the transform's inverse does."""
        return self.inner.inv(batch)

    def inv(self, batch: Any) -> Any:
        """What the transform does."""
        return self.inner(batch)


def apply(transform: Compose, batch: Any, source: Any) -> Any:
    """Pass a batch through transforms; plain functions take any data, not tensordicts alone."""
    for one in transform:
        if isinstance(one, CallableTransform):
            batch = one.function(batch)
        elif one.needs_rows:
            batch = one(batch, source)
        else:
            batch = one(batch)
    return batch


def _checked(part: Any, kind: Callable[..., Part], default: Any = None) -> Part:
    found: Part = default() if part is None and default is not None else part
    if not isinstance(found, kind):  # type: ignore[arg-type]
        name = kind.__name__
        raise TypeError(f"{name.lower()} must be a {name}, got {type(found).__name__}.")
    return found


def _collate_of(storage: Storage, collate_fn: Collate | None) -> Collate | None:
    if collate_fn is None:
        return stack if isinstance(storage, ListStorage) else None
    if not callable(collate_fn):
        raise TypeError(f"collate_fn must be a function of a batch, got {collate_fn!r}.")
    return collate_fn


def _dim_of(storage: Storage, asked: int | None) -> int:
    """The dimension along which a storage grows: the one that was asked for, or its own."""
    if asked is None:
        return storage.arrangement.dim_extend
    if isinstance(asked, bool) or not hasattr(asked, "__index__"):
        raise TypeError(f"dim_extend must be an integer, got {asked!r}: use int(dim_extend).")
    return int(asked)


def _is_of_given_tensors(storage: Storage) -> TypeGuard[TensorStorage]:
    """Whether it wraps the caller's tensors, as the rows of a dataset."""
    return isinstance(storage, TensorStorage) and not isinstance(storage, LazyTensorStorage)


def _size(rows: int | None) -> int | None:
    return None if rows is None else positive(rows, "batch_size")


def _require_order(storage: Storage, writer: Writer) -> None:
    """Raise for lossless storage under a writer that may keep a row longer than the next one."""
    if getattr(storage, "lossless", False) and not writer.overwrites_oldest:
        raise ValueError(
            f"{type(writer).__name__} does not overwrite the oldest row first, which lossless "
            "storage relies on: use RoundRobinWriter, or lossless=False."
        )
