"""The replay buffer: rows to write, to sample and to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

from rl_layout import keys
from rl_replay.buffer.explain import buffer_lines
from rl_replay.buffer.parts import apply
from rl_replay.buffer.persistence import Keeping
from rl_replay.data.collate import Collate, stacked
from rl_replay.data.indexing import coordinates, positions_at, require_numbers
from rl_replay.data.pytree import count_elements, take_apart
from rl_replay.data.structure import TENSOR_KEY
from rl_replay.edges import edge
from rl_replay.samplers import Sampler
from rl_replay.storages import ListStorage, Storage, TensorStorage
from rl_replay.writers import Writer
from rl_slabs import Span
from rl_slabs.internals import Field
from rl_tensordict import NestedKey, insert
from rl_transforms import Transform


class ReplayBuffer(Keeping):
    """Rows to write, to sample and to look at.

    Data go through the inverse of the transforms in reverse order, then into the storage. Samples
    are gathered, marked, collated and transformed. Samples of tensordicts carry `"index"`, which
    `buffer[...]` takes, and `("collector", "row")`, the number of the row, which is never used
    again; trees and tensorclasses keep their form, and take of the marks of slices those for which
    they have leaves. Nothing that is passed in is ever changed. Any number of threads may use a
    buffer.

    Args:
        storage: Where rows live; a list of 1000 objects unless given.
        sampler: Which rows a sample holds; uniform unless given.
        writer: Whether and what may be written; round robin unless given.
        collate_fn: Makes a batch of what the storage returns: rows, or a list of objects.
        pin_memory: Copy samples to pinned memory, if there is a CUDA device.
        prefetch: Batches to make ahead, each in a thread of its own; needs `batch_size`. With a
            `generator` samples are those of torch's global one.
        transform: A transform, or a function of a batch.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        dim_extend: The dimension of the data along which the storage grows; its last unless given.
        generator: Where randomness comes from; torch's own unless given.
        contiguous: Copy the leaves of samples apart: each then has memory of its own, as in-place
            writes under `torch.compile` need, where else they are views into the gathered rows.
        shared: Let other processes that the buffer is passed to see the same rows, and several of
            them write at a time; see `LazyTensorStorage` for how the capacity divides.

    Raises:
        TypeError: A part of the wrong type, or a storage that cannot be shared.
        ValueError: Settings that do not go together.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        >>> buffer.extend(trajectories([3, 2])).tolist()
        [0, 1, 2, 3, 4]
        >>> len(buffer), buffer.sample()["collector", "row"].shape
        (5, torch.Size([4]))
    """

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
    ) -> None:
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            prefetch=prefetch,
            batch_size=batch_size,
            dim_extend=dim_extend,
            generator=generator,
            pin_memory=pin_memory,
            contiguous=contiguous,
            shared=shared,
        )
        if transform is not None:
            self.append_transform(transform)

    @edge
    def add(self, data: Any) -> Any:
        """Store one element.

        Args:
            data: The element: with a storage of several dimensions, one step of all columns.

        Returns:
            Its index: an int, or `[columns, ndim]`; empty where a transform holds it back.

        Raises:
            KeyError: A leaf that is missing, or that the first rows did not have.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.

        Example:
            >>> buffer = ReplayBuffer()
            >>> buffer.add("a string!"), buffer.extend([30, None]).tolist(), len(buffer)
            (0, [1, 2], 3)
        """
        storage = self._storage
        with self._lock:
            self._writer.check(1)
            if self._transform.changes:
                held = self._held_back()
                try:
                    found = self._add_inverse(self._as_several(data, self._dim_extend))
                except BaseException:
                    self._hold_back(held)
                    raise
                return int(found) if storage.ndim == len(found) == 1 else found
            span = storage.add(data)
            self._took_in()
        if storage.ndim > 1:
            return coordinates(storage, _positions(span))
        return span.rows.start if isinstance(span.rows, slice) else int(span.rows[0])

    @edge
    def extend(self, data: Any) -> torch.Tensor:
        """Store several elements.

        Args:
            data: Elements along the dimensions of the storage. A list is a list of elements, which
                are alike and each of which is what `add` takes; a tuple or dict is a tree whose
                leaves have these dimensions in front.

        Returns:
            Their indices, `[n]` or `[n, ndim]`, in the order of the data; none where a transform
            holds all of them back.

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
        with self._lock:
            self._writer.check(count_elements(data, self._storage.ndim))
            held = self._held_back()
            try:
                if isinstance(data, list) and not isinstance(self._storage, ListStorage):
                    return self._add_inverse(stacked(data, self._dim_extend))
                return self._extend_inverse(self._inverse(data))
            except BaseException:
                self._hold_back(held)
                raise

    def __len__(self) -> int:
        return len(self._storage)

    @edge
    def __getitem__(self, index: Any) -> Any:
        """Rows as if the buffer were a tensor of them, or one of its leaves by key."""
        if key := _as_key(index):
            return self._column(key)
        with self._lock:
            positions = positions_at(self._storage, index)
            positions, rows = self._storage.read_live(positions, some=isinstance(index, slice))
            if self._transform.needs_rows and isinstance(rows, TensorDictBase):
                where = torch.as_tensor(positions)
                numbers = self._storage.ring.numbers_at(where.reshape(-1))
                insert(rows, keys.ROW, numbers.reshape(where.shape).to(rows.device or "cpu"))
        if self._writer.stores_index and isinstance(rows, TensorDictBase):
            where = torch.as_tensor(positions)
            found = coordinates(self._storage, where.reshape(-1))
            insert(rows, (keys.INDEX,), found.reshape((*where.shape, *found.shape[1:])))
        if self._collate is not None and not isinstance(positions, int):
            rows = self._collate(rows)
        if (
            isinstance(positions, int)
            and self._transform.changes
            and isinstance(rows, TensorDictBase)
        ):
            # transforms change rows, of which this is one
            return apply(self._transform, rows.unsqueeze(0), self._source())[0]
        return apply(self._transform, rows, self._source())

    @edge
    def __setitem__(self, index: Any, value: Any) -> None:
        """Write rows, or one leaf of all rows, where they lie.

        Raises:
            KeyError: A leaf that is not stored.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.
        """
        with self._lock, self._storage.exclusive():
            self._writer.check(len(self))
            if key := _as_key(index):
                self._set_column(key, value)
            else:
                positions = positions_at(self._storage, index)
                value = self._inverse(value)
                if isinstance(positions, int):
                    positions, value = torch.tensor([positions]), self._as_several(value, 0)
                self._storage.replace(positions, value)
            self._changed()

    @edge
    def update_rows(self, rows: torch.Tensor, tensordict: TensorDictBase) -> torch.Tensor:
        """Write leaves of rows back, unless they were overwritten since.

        Markers are left out: those of a sample say where its slices end, not what is stored.

        Args:
            rows: Row numbers, as `("collector", "row")` of a sample holds them, int64 `[N]`.
            tensordict: Some of the leaves, `[N]`.

        Returns:
            Which rows were still valid and are written, bool `[N]`.

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
        storage = self._storage
        if not isinstance(storage, TensorStorage):
            raise TypeError(f"a {type(storage).__name__} has no leaves: use buffer[index] = value.")
        require_numbers(rows, tensordict)
        with self._lock, storage.exclusive():
            self._writer.check(len(rows))
            good = storage.ring.is_live(rows)
            if good.any():
                chosen = tensordict[good.to(tensordict.device or "cpu")]
                storage.update_unmarked(rows[good], chosen)
                self._changed()
        return good

    def empty(self) -> None:
        """Drop every row; what is written next may have other keys."""
        with self._lock:
            self._writer.check(0)
            self._rewind()
            self._storage.empty()
            self._sampler.reset()
            self._fit()

    @property
    def write_count(self) -> int:
        """Rows ever written, overwritten ones among them."""
        self._storage.sync()
        return self._storage.ring.written

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
        if rows > self._storage.max_size:
            raise ValueError(f"the buffer never holds {rows} rows, only {self._storage.max_size}.")
        if not self._wait(rows, timeout):
            raise TimeoutError(
                f"waited {timeout} s for {rows} rows and got {len(self)}: is anyone writing?"
            )

    def stats(self) -> dict[str, float]:
        """Figures: rows, trajectories, the share of rows that continue another, redraws.

        Example:
            >>> ReplayBuffer().stats()["size"]
            0
        """
        with self._lock:
            ahead = 0 if self._prefetch is None else len(self._prefetch)
            return self._storage.stats() | {"prefetched": ahead, "redraws": self._redraws}

    def explain(self) -> str:
        """Describe what is stored, where boundaries come from, and what it costs.

        Example:
            >>> print(ReplayBuffer().explain())
            ReplayBuffer
              ListStorage: 0 of 1000 rows
              RandomSampler(), RoundRobinWriter(), no transforms
        """
        with self._lock:
            return buffer_lines(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._storage!r}, {self._sampler!r}, {self._writer!r})"

    def _extend_inverse(self, data: Any) -> torch.Tensor:
        storage = self._storage
        if data is None:
            shape = (0,) if storage.ndim == 1 else (0, storage.ndim)
            return torch.empty(shape, dtype=torch.int64)
        return self._wrote(storage.extend(data))

    def _wrote(self, span: Span) -> torch.Tensor:
        storage = self._storage
        self._took_in()
        positions = _positions(span)
        if self._dim_extend:
            grid = positions.view(-1, *storage.columns)
            positions = grid.transpose(0, self._dim_extend).reshape(-1)
        return coordinates(storage, positions)

    def _add_inverse(self, rows: Any) -> torch.Tensor:
        """Store what transforms make of elements that are stacked: rows, or whole trajectories."""
        storage = self._storage
        whole = is_tensor_collection(rows) and rows.batch_dims > storage.ndim
        rows = self._inverse(rows)
        if whole and rows is not None and isinstance(storage, TensorStorage):
            return self._wrote(storage.extend_elements(rows))
        return self._extend_inverse(rows)

    def _as_several(self, data: Any, dim: int) -> Any:
        """One element as a batch of one."""
        if isinstance(self._storage, ListStorage):
            return [data]
        if isinstance(data, torch.Tensor) or is_tensor_collection(data):
            return data.unsqueeze(dim)
        return stacked([data])

    def _took_in(self) -> None:
        self._changes += 1
        if self._waiting:
            self._written.notify_all()

    def _held_back(self) -> Any:
        """What transforms hold of former calls, ahead of a write that may fail; None mostly."""
        held = self._transform.write_state() if self._transform.changes else None
        if held is not None:
            self._storage.ring.begin_attempt()
        return held

    def _hold_back(self, held: Any) -> None:
        """Let transforms hold that again, unless what they passed on is stored."""
        if held is not None and not self._storage.ring.attempt_stands():
            self._transform.restore_write_state(held)

    def _inverse(self, data: Any) -> Any:
        return self._transform.inv(data) if self._transform.changes else data

    def _column(self, key: tuple[str, ...]) -> Any:
        rows = self[:]
        if isinstance(rows, torch.Tensor) and key == (TENSOR_KEY,):
            return rows
        if not is_tensor_collection(rows) and not isinstance(rows, dict):
            raise KeyError(f"a {type(self._storage).__name__} has no leaf {key}: use an index.")
        if key[0] == TENSOR_KEY and len(key) > 1 and rows.get(TENSOR_KEY, None) is None:
            key = key[1:]  # how buffers of tensordicts used to be addressed
        if isinstance(rows, dict):
            return _leaf_at(rows, key)
        return keys.require(rows, key)

    def _set_column(self, key: tuple[str, ...], value: Any) -> None:
        storage = self._storage
        if not isinstance(storage, TensorStorage) or storage.structure is None:
            raise KeyError(f"{key} is no leaf of what is stored: there are none.")
        positions = positions_at(storage, slice(None))
        assert isinstance(positions, torch.Tensor)  # a slice means several rows
        if key[0] == TENSOR_KEY and len(key) > 1:
            key = key[1:]
        assert storage.store is not None  # it is made with the structure
        field = storage.store.schema[key]
        storage.replace_leaf(positions, key, _column_like(value, field, positions.shape))


def _as_key(index: NestedKey | Any) -> tuple[str, ...] | None:
    if isinstance(index, str):
        return (index,)
    if isinstance(index, tuple) and index and all(isinstance(part, str) for part in index):
        return index
    return None


def _leaf_at(tree: dict[str, Any], key: tuple[str, ...]) -> Any:
    found: Any = tree
    for name in key:
        if not isinstance(found, dict) or name not in found:
            raise KeyError(f"no leaf {key} in these rows: they are {take_apart(tree)[0]}.")
        found = found[name]
    return found


def _column_like(value: Any, field: Field, rows: torch.Size) -> torch.Tensor:
    """What is to be written to one leaf of all rows: tensors as they are, numbers as the leaf's."""
    leaf = torch.as_tensor(value)
    exact = isinstance(value, torch.Tensor | np.ndarray)
    if leaf.dtype != field.dtype and (exact or not torch.can_cast(leaf.dtype, field.dtype)):
        raise TypeError(
            f"leaf {field.key!r}: expected {field.dtype}, got {leaf.dtype}. Cast it with "
            f".to({field.dtype})."
        )
    expected = [*rows, *field.shape]
    try:
        return leaf.to(field.dtype).expand(expected)
    except RuntimeError:
        raise ValueError(
            f"leaf {field.key!r}: expected shape {expected}, or one that expands to it, got "
            f"{list(leaf.shape)}. Reshape it."
        ) from None


def _positions(span: Span) -> torch.Tensor:
    rows = span.rows
    # numpy takes half of torch's time
    return torch.from_numpy(np.arange(rows.start, rows.stop)) if isinstance(rows, slice) else rows
