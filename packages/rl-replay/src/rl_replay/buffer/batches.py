"""Batches: rows are drawn, gathered, marked, collated and transformed, at once or ahead of time."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from rl_replay.buffer.indexing import coordinates
from rl_replay.buffer.parts import BufferParts
from rl_replay.buffer.prefetch import DrawnFrom
from rl_replay.data.structure import Arrangement
from rl_replay.samplers.slice_layout import Slices, mark_slices
from rl_replay.storages import TensorStorage
from rl_replay.storages.row_store import PlainRows
from rl_slabs import Rows
from rl_tensordict import UnfitValue, as_tensor, as_tuple, insert


class Sample(NamedTuple):
    """A batch, and what is known about it."""

    rows: Any  # As they are returned
    info: dict[str, Any]  # Index and row id of each row, and what the sampler said
    last: bool  # Whether it ends an epoch


class DrawnIndices(NamedTuple):
    """Rows that a sampler chose."""

    numbers: torch.Tensor  # Their row ids, int64 [N]
    info: dict[str, Any]  # What the sampler knows about them
    last: bool  # Whether they end an epoch
    size: int  # How many rows were asked for


class KnownDraw(NamedTuple):
    """Rows that a sampler chose of a buffer whose batches are copies of rows and nothing else."""

    numbers: torch.Tensor  # Their row ids, int64 [N]
    positions: torch.Tensor  # Where they are, int64 [N]
    coordinates: torch.Tensor  # What `buffer[...]` takes, int64 [N] or [N, ndim]
    info: dict[str, Any]  # What the sampler knows about them
    last: bool  # Whether they end an epoch


class BatchMaker:
    """Makes batches of the rows of a buffer."""

    def __init__(
        self, parts: BufferParts, *, pin_memory: bool, contiguous: bool, info_in_sample: bool
    ) -> None:
        self._parts = parts
        self._contiguous = contiguous
        self._pins = pin_memory and torch.cuda.is_available()
        self.info_in_sample = info_in_sample  # what the sampler knows of each row, too
        # how many rows were drawn in place of some that other processes overwrote meanwhile
        self.redraws = 0

    def next_batch(self, size: int | None) -> Sample:
        """The next batch of so many rows."""
        if size is None:
            raise UnfitValue("how many rows? Give batch_size to the buffer or to sample().")
        local = self._parts.local
        if local.prefetch is not None:
            return self._next_prefetched(size)
        with local.lock:
            draw = self._draw(size)
            rows, info = self._gather(draw)
        return Sample(self._finish(rows, info), info, draw.last)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Excludes the other threads that use the buffer."""
        return self._parts.local.lock

    def plain_rows(self) -> Rows | None:
        """The rows, if a batch is nothing but copies of some and they lie in private memory."""
        # Then an ensemble gathers those of several buffers into one block, and so saves to stack
        # them.
        parts, storage = self._parts, self._parts.storage
        is_changed = parts.transform.changes or parts.collate is not None
        if parts.local.prefetch is not None or is_changed or self._contiguous or self._pins:
            return None
        if not isinstance(storage, TensorStorage) or storage.is_shared:
            return None
        structure, store = storage.structure, storage.store
        is_plain = structure is not None and structure.is_plain and storage.on_host
        return store.rows if is_plain and isinstance(store, PlainRows) else None

    def draw_known(self, size: int) -> KnownDraw:
        """Chooses the rows of a batch that `plain_rows` has; the caller holds the lock."""
        storage, sampler = self._parts.storage, self._parts.sampler
        numbers, info, last, _ = self._draw(size)
        if sampler.weighs_rows:
            info = sampler.complete(storage, info)
        positions = storage.ring.positions(numbers)
        index = coordinates(storage, positions) if storage.arrangement.ndim > 1 else positions
        return KnownDraw(numbers, positions, index, info, last)

    def rewind(self) -> None:
        """Drops the prefetched batches, as if their rows had never been chosen."""
        parts = self._parts
        ahead = None if parts.local.prefetch is None else parts.local.prefetch.drop()
        if ahead is None:
            return
        before, rng_after = ahead
        parts.sampler.load_state_dict(before.sampler)
        generator = parts.generator
        if generator is None or before.rng is None or rng_after is None:
            return
        if torch.equal(generator.get_state(), rng_after):  # else the caller has seeded it since
            generator.set_state(before.rng)

    def stats(self) -> dict[str, int]:
        """How many batches are prefetched, and how many rows were drawn again."""
        queue = self._parts.local.prefetch
        return {"prefetched": 0 if queue is None else len(queue), "redraws": self.redraws}

    def _next_prefetched(self, size: int) -> Sample:
        parts = self._parts
        queue = parts.local.prefetch
        assert queue is not None  # the caller looked
        while True:
            with parts.local.lock:
                pending = queue.take(parts.stamp, size, self._are_live)
                while pending is None:  # again where rows of other processes came into sight
                    self.rewind()
                    self._submit(size)
                    pending = queue.take(parts.stamp, size, lambda _: True)
                with suppress(Exception):  # of a batch ahead: it is raised once that is asked for
                    while len(queue) < queue.depth:
                        self._submit(size)
            batch: Sample | None = pending.future.result()
            with parts.local.lock:
                # a change meanwhile made it stale, and another one is drawn
                if batch is not None and pending.stamp == parts.stamp:
                    return batch

    def _submit(self, size: int) -> None:
        """Draws rows now, in the order of samples, and lets a thread make a batch of them."""
        parts = self._parts
        queue, stamp = parts.local.prefetch, parts.stamp
        assert queue is not None  # the caller looked
        before = DrawnFrom(parts.sampler.progress(), parts.rng_state())
        draw = self._draw(size)

        def make() -> Sample | None:
            with parts.local.lock:
                if stamp != parts.stamp:
                    return None
                rows, info = self._gather(draw)
            return Sample(self._finish(rows, info), info, draw.last)

        queue.submit(
            make,
            stamp=stamp,
            size=size,
            row_ids=draw.numbers,
            before=before,
            rng_after=parts.rng_state(),
        )

    def _are_live(self, row_ids: torch.Tensor) -> bool:
        """Whether no other process has overwritten rows of a batch that waits."""
        storage = self._parts.storage
        return not storage.is_shared or bool(storage.ring.is_live(row_ids).all())

    def _draw(self, size: int) -> DrawnIndices:
        storage, sampler = self._parts.storage, self._parts.sampler
        try:
            numbers, info = storage.session.choose(storage, sampler, size)
        except ValueError as error:
            if type(storage) is TensorStorage and not len(storage):
                error.add_note(
                    "The tensors of a TensorStorage are room to be filled. Where they are rows, as "
                    "of a dataset, give the buffer writer=ImmutableDatasetWriter()."
                )
            raise
        if not sampler.proven:
            self._require_rows(numbers)
        return DrawnIndices(numbers, info, sampler.ran_out, size)

    def _require_rows(self, numbers: Any) -> None:
        """Raises unless a sampler of the caller's chose rows that can be read."""
        storage, sampler = self._parts.storage, self._parts.sampler
        if not isinstance(numbers, torch.Tensor) or numbers.dtype is not torch.int64:
            raise TypeError(f"{sampler!r} must return row numbers as int64 [N], got {numbers!r}.")
        good = storage.session.may_be_chosen(numbers)
        if not good.all():
            raise ValueError(
                f"{sampler!r} chose row {int(numbers[~good][0])}: rows are numbered from 0, and "
                "storage.ring.window() says which can be read."
            )

    def _gather(self, draw: DrawnIndices) -> tuple[Any, dict[str, Any]]:
        """Copies the rows of a draw, with their index, row ids and markers."""
        storage, sampler = self._parts.storage, self._parts.sampler
        chosen = draw.numbers, draw.info
        rows, numbers, positions, known, redrawn = storage.session.draw(
            storage, sampler, draw.size, chosen, contiguous=self._contiguous
        )
        self.redraws += redrawn
        if sampler.weighs_rows:
            known = sampler.complete(storage, known)
        index = coordinates(storage, positions) if storage.arrangement.ndim > 1 else positions
        if index is numbers:  # an in-place write to one must not move the other
            index = index.clone()
        if isinstance(storage, TensorStorage) and not storage.on_host:
            index, numbers = index.to(storage.rows_device), numbers.to(storage.rows_device)
        info = {keys.INDEX: index, "row": numbers} | known
        # the first question is a tenth of the second, which an abstract class answers
        if type(rows) is TensorDict or isinstance(rows, TensorDictBase):
            self._name(rows, index, numbers, known)
            if "slices" in known:
                mark_slices(rows, known["slices"], sampler.truncated_key, sampler.end_keys)
        elif "slices" in known and isinstance(storage, TensorStorage):
            rows = self._marked(storage, rows, known["slices"])
        return rows, info

    def _name(
        self,
        rows: TensorDictBase,
        index: torch.Tensor,
        numbers: torch.Tensor,
        known: dict[str, Any],
    ) -> None:
        """Puts index, row ids, and what the sampler knows into rows."""
        if len(rows.batch_size) > 1:
            index, numbers = _spread(index, rows), _spread(numbers, rows)
        _put(rows, (keys.INDEX,), index)
        _put(rows, keys.ROW, numbers)
        if known and self.info_in_sample:
            insert_info(rows, known)

    def _marked(self, storage: TensorStorage, rows: Any, slices: Slices) -> Any:
        """Slices of trees or classes, in those of the marked leaves that they have."""
        structure, sampler = storage.structure, self._parts.sampler
        assert structure is not None  # there are rows
        cells = structure.take_apart(rows, Arrangement()).cells
        leaves = list(cells.keys(include_nested=True, leaves_only=True))
        mark_slices(cells, slices, sampler.truncated_key, sampler.end_keys)
        return structure.put_together(cells.select(*leaves))

    def _finish(self, rows: Any, info: dict[str, Any]) -> Any:
        parts = self._parts
        if parts.collate is not None:
            is_list, rows = isinstance(rows, list), parts.collate(rows)
            # tensordicts of a list are one only now
            if is_list and isinstance(rows, TensorDictBase) and len(rows) == len(info["row"]):
                known = {key: info[key] for key in info.keys() - {keys.INDEX, "row"}}
                self._name(rows, info[keys.INDEX], info["row"], known)
        if parts.transform.changes:
            rows = parts.transform.apply_to(rows, parts.storage)
        if self._pins and hasattr(rows, "pin_memory"):
            rows = rows.pin_memory()
        return rows


def _put(rows: TensorDictBase, path: tuple[str, ...], value: torch.Tensor) -> None:
    """Puts an entry that fits into rows; elements that differ in shape are a lazy stack."""
    if type(rows) is TensorDict:
        insert(rows, path, value)
    else:
        rows.set(path, value)


def insert_info(rows: TensorDictBase, known: dict[str, Any]) -> None:
    """Puts what a sampler knows into a sample, if it is one value a row or one for all."""
    size = rows.batch_size if type(rows) is TensorDict and rows.device is None else None
    for key, value in known.items():
        if type(value) is torch.Tensor and value.shape == size:
            insert(rows, as_tuple(key), value)
            continue
        if not isinstance(value, torch.Tensor | np.ndarray | float | int):
            continue
        leaf = as_tensor(value)
        if rows.device is not None:
            leaf = leaf.to(rows.device)
        if not leaf.ndim:
            leaf = leaf.expand(len(rows)).clone()
        if len(leaf) == len(rows):
            _put(rows, as_tuple(key), _spread(leaf, rows) if leaf.ndim == 1 else leaf)


def _spread(numbers: torch.Tensor, rows: TensorDictBase) -> torch.Tensor:
    """One number a row for every step of it, where rows are whole trajectories."""
    inner = rows.batch_size[1:]
    if not inner:
        return numbers
    return numbers.view(-1, *[1] * len(inner)).expand(-1, *inner).clone()
