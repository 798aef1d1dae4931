"""How batches are drawn: choose, gather, mark, collate, transform; at once or ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from rl_replay.buffer.parts import Composition, apply
from rl_replay.buffer.row_source import StoredRows
from rl_replay.data.indexing import coordinates
from rl_replay.data.structure import Arrangement
from rl_replay.edges import edge
from rl_replay.samplers.slice_layout import Slices, mark_slices
from rl_replay.storages import TensorStorage
from rl_slabs.internals import positive
from rl_tensordict import as_tuple, insert


class Draw(NamedTuple):
    """Rows that a sampler chose."""

    numbers: torch.Tensor  # Their numbers, int64 [N]
    info: dict[str, Any]  # What the sampler knows about them
    last: bool  # Whether they end an epoch
    size: int  # How many rows were asked for


class Sampling(Composition):
    """The half of a buffer that hands rows out.

    Attributes:
        first_rows_timeout: Seconds that `sample` waits for the first row. 0 unless a producer that
            writes in the background sets it: then an empty buffer is an error at once.

    Args:
        pin_memory: Copy samples to pinned memory, if there is a CUDA device.
        contiguous: Copy the leaves of samples apart.
        **parts: As for `Composition`.
    """

    first_rows_timeout: float = 0.0
    _known_in_sample = False  # whether what a sampler knows of each row goes into the sample

    def __init__(self, *, pin_memory: bool, contiguous: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self._contiguous = contiguous
        self._pins = pin_memory and torch.cuda.is_available()
        self._redraws = 0  # only other processes can change rows while they are read

    @edge
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
            return_info: Return what is known about the rows as well.
            timeout: Seconds to wait for the first row of an empty buffer, as after the start of a
                collector in the background; `first_rows_timeout` unless given.

        Returns:
            The batch, or the batch and a dict with "index" and "row" of each of its rows, and
            whatever the sampler said about them.

        Raises:
            ValueError: No batch size or one below 1, an empty buffer, or what the sampler refuses.
            TypeError: The batch size is no integer.
            TimeoutError: No row came in time.
        """
        size = self._size(batch_size)
        limit = self.first_rows_timeout if timeout is None else timeout
        if limit:
            self._await_first(limit)
        batch, info, _ = self._next(size)
        return (batch, info) if return_info else batch

    def _await_first(self, limit: float) -> None:
        if not len(self._storage) and not self._wait(1, limit):
            raise TimeoutError(
                f"waited {limit:g} s for the first rows of an empty buffer and none came: is "
                "anyone writing? Give sample(timeout=seconds) more time, or set first_rows_timeout."
            )

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end of an epoch; without end where the sampler knows none."""
        size = self._size(None)
        last = False
        while not last:
            batch, _, last = self._next(size)
            yield batch

    def _size(self, batch_size: int | None) -> int:
        size = self._batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("how many rows? Give batch_size to the buffer or to sample().")
        return size if batch_size is None else positive(size, "batch_size")

    def _next(self, size: int) -> tuple[Any, dict[str, Any], bool]:
        """The next batch, what is known about its rows, and whether it ends an epoch."""
        if self._prefetch is not None:
            return self._next_ahead(size)
        with self._lock:
            drawn = self._draw(size)
            rows, info = self._gather(drawn)
        return self._finish(rows), info, drawn.last

    def _next_ahead(self, size: int) -> tuple[Any, dict[str, Any], bool]:
        queue = self._prefetch
        assert queue is not None  # the caller looked
        while True:
            with self._lock:
                pending = queue.take(self._stamp, size)
                if pending is None:
                    self._rewind()
                    self._submit(size)
                    pending = queue.take(self._stamp, size)
                assert pending is not None  # just submitted
                while len(queue) < queue.depth:
                    self._submit(size)
            made = pending.future.result()
            with self._lock:
                if made is not None and pending.stamp == self._stamp:
                    return *made, pending.last

    def _submit(self, size: int) -> None:
        queue, stamp, before = self._prefetch, self._stamp, self._drawn_from()
        assert queue is not None  # the caller looked
        drawn = self._draw(size)

        def make() -> tuple[Any, dict[str, Any]] | None:
            with self._lock:
                if stamp != self._stamp:
                    return None
                rows, info = self._gather(drawn)
            return self._finish(rows), info

        queue.submit(
            make, stamp=stamp, size=size, before=before, rng_after=self._rng(), last=drawn.last
        )

    def _draw(self, size: int) -> Draw:
        storage, sampler = self._storage, self._sampler
        numbers, info = storage.choose(sampler, size)
        if not sampler.proven:
            self._require_rows(numbers)
        return Draw(numbers, info, sampler.ran_out, size)

    def _require_rows(self, numbers: Any) -> None:
        """Raise for what is no choice of rows, before it is taken for one."""
        storage, sampler = self._storage, self._sampler
        if not isinstance(numbers, torch.Tensor) or numbers.dtype is not torch.int64:
            raise TypeError(f"{sampler!r} must return row numbers as int64 [N], got {numbers!r}.")
        good = storage.may_be_chosen(numbers)
        if not good.all():
            raise ValueError(
                f"{sampler!r} chose row {int(numbers[~good][0])}: rows are numbered from 0, and "
                "storage.ring.window() says which can be read."
            )

    def _gather(self, drawn: Draw) -> tuple[Any, dict[str, Any]]:
        """Copy chosen rows out, with their numbers and marks."""
        storage = self._storage
        rows, numbers, positions, known, redrawn = storage.draw(
            self._sampler, drawn.size, (drawn.numbers, drawn.info), contiguous=self._contiguous
        )
        self._redraws += redrawn
        index = coordinates(storage, positions)
        if index is numbers:  # an in-place write to one must not move the other
            index = index.clone()
        if isinstance(storage, TensorStorage) and not storage.on_host:
            index, numbers = index.to(storage.rows_device), numbers.to(storage.rows_device)
        info = {keys.INDEX: index, "row": numbers} | known
        # the first question is a tenth of the second, which an abstract class answers
        if type(rows) is TensorDict or isinstance(rows, TensorDictBase):
            if len(rows.batch_size) > 1:
                index, numbers = _spread(index, rows), _spread(numbers, rows)
            insert(rows, (keys.INDEX,), index)
            insert(rows, keys.ROW, numbers)
            if known and self._known_in_sample:
                _put_known(rows, known)
            if "slices" in known:
                sampler = self._sampler
                mark_slices(rows, known["slices"], sampler.truncated_key, sampler.end_keys)
        elif "slices" in known and isinstance(storage, TensorStorage):
            rows = self._marked(storage, rows, known["slices"])
        return rows, info

    def _marked(self, storage: TensorStorage, rows: Any, slices: Slices) -> Any:
        """Slices of trees or classes, in those of the marked leaves that they have."""
        structure = storage.structure
        assert structure is not None  # there are rows
        cells = structure.take_apart(rows, Arrangement()).cells
        leaves = list(cells.keys(include_nested=True, leaves_only=True))
        mark_slices(cells, slices, self._sampler.truncated_key, self._sampler.end_keys)
        return structure.put_together(cells.select(*leaves))

    def _finish(self, rows: Any) -> Any:
        if self._collate is not None:
            rows = self._collate(rows)
        if self._transform.changes:
            rows = apply(self._transform, rows, self._source())
        if self._pins and hasattr(rows, "pin_memory"):
            rows = rows.pin_memory()
        return rows

    def _source(self) -> StoredRows | None:
        storage = self._storage
        return StoredRows(storage) if isinstance(storage, TensorStorage) else None


def _put_known(rows: TensorDictBase, known: dict[str, Any]) -> None:
    """Put what a sampler knows into a sample, if it is one value a row or one for all."""
    for key, value in known.items():
        if not isinstance(value, torch.Tensor | np.ndarray | float | int):
            continue
        leaf = torch.as_tensor(value, device=rows.device)
        if not leaf.ndim:
            leaf = leaf.expand(len(rows)).clone()
        if len(leaf) == len(rows):
            insert(rows, as_tuple(key), _spread(leaf, rows) if leaf.ndim == 1 else leaf)


def _spread(numbers: torch.Tensor, rows: TensorDictBase) -> torch.Tensor:
    """One number a row for every step of it, where rows are whole trajectories."""
    inner = rows.batch_size[1:]
    if not inner:
        return numbers
    return numbers.view(-1, *[1] * len(inner)).expand(-1, *inner).clone()
