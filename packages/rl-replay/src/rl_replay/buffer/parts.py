"""The parts of a buffer, checked against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import torch

from rl_replay.buffer.process_local import ProcessLocal
from rl_replay.buffer.transforms import BufferTransforms
from rl_replay.data.collate import Collate, stack
from rl_replay.samplers import RandomSampler, Sampler
from rl_replay.storages import LazyTensorStorage, ListStorage, Storage, TensorStorage
from rl_replay.writers import ImmutableDatasetWriter, Writer
from rl_slabs.internals import positive

GivenPart = TypeVar("GivenPart")


class BufferParts:
    """Storage, sampler, writer, transforms, collate function and generator of a buffer."""

    # Whoever changes them holds the lock in `local`. Each change raises the count that tells which
    # prefetched batches are stale.

    def __init__(  # noqa: PLR0913 - the parts that the seeds name
        self,
        local: ProcessLocal,
        *,
        storage: Storage | None,
        sampler: Sampler | None,
        writer: Writer,
        collate_fn: Collate | None,
        dim_extend: int | None,
        shared: bool,
    ) -> None:
        self.local = local
        self.is_shared = shared
        self.changes = 0
        # an empty storage is falsy
        self.storage: Storage = _checked(storage, Storage, lambda: ListStorage(1000))
        if shared:
            self.storage.share()
        self.sampler: Sampler = _checked(sampler, Sampler, RandomSampler)
        self.writer: Writer = _checked(writer, Writer)
        self.collate = _collate_of(self.storage, collate_fn)
        self.transform = BufferTransforms()
        self.batch_size: int | None = None
        self.generator: torch.Generator | None = None
        self._asked_dim = dim_extend
        self.dim_extend = _dim_of(self.storage, dim_extend)
        self.storage.arrange(self.dim_extend)

    @property
    def stamp(self) -> tuple[int, int, int]:
        """Changes of this process, and rows dropped or loaded by any: older batches are stale."""
        return self.changes, self.transform.changes, self.storage.epoch

    def explain(self) -> list[str]:
        """The parts as text, a line each."""
        names = [type(one).__name__ for one in self.transform]
        transforms = f"transforms {', '.join(names)}" if names else "no transforms"
        return [*self.storage.explain(), f"{self.sampler!r}, {self.writer!r}, {transforms}"]

    def fit(self) -> None:
        """Checks that the parts go together, and tells the storage what the sampler needs."""
        storage, sampler, writer = self.storage, self.sampler, self.writer
        writer.require_parts(storage, sampler)
        _require_order(storage, writer)
        if isinstance(writer, ImmutableDatasetWriter) and _is_of_given_tensors(storage):
            storage.fill()
        storage.mark(list(sampler.id_keys), list(sampler.end_keys))
        storage.keep_index(sampler.draws_slices)
        if sampler.storage_number not in (None, storage.identity.number):
            sampler.reset()  # its epoch is of another buffer
        sampler.storage_number = storage.identity.number
        if storage.is_shared:
            sampler.share(storage)
        # most writers allow every write, so they are not asked
        self.checks_writes = getattr(writer.check, "__func__", None) is not Writer.check
        self.changes += 1

    def require_writable(self, rows: int) -> None:
        """Raises if the writer does not allow a write of so many rows."""
        if self.checks_writes:
            self.writer.check(rows)

    def set_storage(self, storage: Storage, collate_fn: Collate | None) -> Storage:
        """Exchanges the storage, and returns the former one."""
        _require_order(_checked(storage, Storage), self.writer)
        dim = _dim_of(storage, self._asked_dim)
        collate = _collate_of(storage, collate_fn)
        storage.arrange(dim)
        if self.is_shared:
            storage.share()
        former = self.storage
        self._exchange(storage=storage, collate=collate, dim_extend=dim)
        self.sampler.reset()
        return former

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchanges the sampler, and returns the former one."""
        former = self.sampler
        _checked(sampler, Sampler).generator = self.generator
        self._exchange(sampler=sampler)
        return former

    def set_writer(self, writer: Writer) -> Writer:
        """Exchanges the writer, and returns the former one."""
        former = self.writer
        self._exchange(writer=_checked(writer, Writer))
        return former

    def set_generator(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Exchanges the source of randomness, and returns the former one."""
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(
                f"generator must be a torch.Generator, got {type(generator).__name__}: use "
                "torch.Generator().manual_seed(seed)."
            )
        former = self.generator
        self.generator = self.sampler.generator = generator
        self.changes += 1
        return former

    def rng_state(self) -> torch.Tensor | None:
        """The state of the generator; None if samples are drawn from torch's own."""
        return None if self.generator is None else self.generator.get_state()

    def _exchange(self, **parts: Any) -> None:
        """Exchanges parts; where they do not go together, the former ones stay."""
        former = {name: getattr(self, name) for name in parts}
        try:
            self.__dict__.update(parts)
            self.fit()
        except BaseException:
            self.__dict__.update(former)
            self.fit()
            raise


def _checked(
    part: GivenPart | None,
    kind: Callable[..., GivenPart],
    default: Callable[[], GivenPart] | None = None,
) -> GivenPart:
    found: Any = default() if part is None and default is not None else part
    if not isinstance(found, kind):  # type: ignore[arg-type]
        name = kind.__name__
        raise TypeError(f"{name.lower()} must be a {name}, got {type(found).__name__}.")
    checked: GivenPart = found
    return checked


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


def checked_size(rows: int | None) -> int | None:
    """A batch size, checked."""
    return None if rows is None else positive(rows, "batch_size")


def _require_order(storage: Storage, writer: Writer) -> None:
    """Raise for lossless storage under a writer that may keep a row longer than the next one."""
    if getattr(storage, "lossless", False) and not writer.overwrites_oldest:
        raise ValueError(
            f"{type(writer).__name__} does not overwrite the oldest row first, which lossless "
            "storage relies on: use RoundRobinWriter, or lossless=False."
        )
