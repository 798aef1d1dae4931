"""Indexing of a buffer: from the index of a caller to positions of rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_layout import keys
from rl_replay.buffer.parts import BufferParts
from rl_replay.data.collate import stacked
from rl_replay.data.pytree import take_apart
from rl_replay.data.structure import TENSOR_KEY
from rl_replay.storages import ListStorage, Storage, TensorStorage
from rl_replay.storages.positions import positions_at, row_ids_of, whole_numbers
from rl_slabs.internals import Field
from rl_tensordict import CPU, NestedKey, as_tensor, insert


class IndexedRows:
    """The rows of a buffer as if it were a tensor of them, or a tensordict of columns."""

    def __init__(self, parts: BufferParts) -> None:
        self._parts = parts

    def read(self, index: Any) -> Any:
        """Rows, collated and transformed, or one of their leaves by key."""
        if key := _as_key(index):
            return _leaf_of(self.read(slice(None)), key, self._parts.storage)
        parts, storage = self._parts, self._parts.storage
        with parts.local.lock:
            positions = _positions_at(storage, index)
            positions, rows = storage.read_live(positions, some=isinstance(index, slice))
            where = torch.as_tensor(positions, device=CPU)
            if parts.transform.needs_rows:
                numbers = storage.ring.numbers_at(where.reshape(-1))
                rows = _with_numbers(storage, rows, keys.ROW, where, numbers)
        rows = self._with_index(rows, where)
        single = not where.ndim
        if parts.collate is not None and not single:
            is_list, rows = isinstance(rows, list), parts.collate(rows)
            # tensordicts of a list are one only now
            rows = self._with_index(rows, where) if is_list else rows
        if single and parts.transform.changes and isinstance(rows, TensorDictBase):
            # transforms change rows, of which this is one
            return parts.transform.apply_to(rows.unsqueeze(0), storage)[0]
        return parts.transform.apply_to(rows, storage)

    def _with_index(self, rows: Any, where: torch.Tensor) -> Any:
        """Rows with their index, if the writer says so."""
        storage = self._parts.storage
        if not self._parts.writer.stores_index:
            return rows
        found = coordinates(storage, where.reshape(-1))
        return _with_numbers(storage, rows, (keys.INDEX,), where, found)

    def write(self, index: Any, value: Any) -> None:
        """Replaces rows in place, or one leaf of all rows; under the lock."""
        parts, storage = self._parts, self._parts.storage
        with storage.exclusive():
            parts.require_writable(len(storage))
            parts.writer.note_changes()
            if key := _as_key(index):
                self._write_column(key, value)
            else:
                positions = _positions_at(storage, index)
                value = parts.transform.inv(value) if parts.transform.changes else value
                if isinstance(positions, int):
                    positions = torch.tensor([positions], device=CPU)
                    value = batch_of_one(storage, value)
                storage.replace(positions, value)
            parts.changes += 1

    def update(self, rows: torch.Tensor, tensordict: TensorDictBase) -> torch.Tensor:
        """Replaces leaves of those rows that are still valid, by row id; see `update_rows`."""
        parts, storage = self._parts, self._parts.storage
        if not isinstance(storage, TensorStorage):
            raise TypeError(f"a {type(storage).__name__} has no leaves: use buffer[index] = value.")
        require_numbers(rows, tensordict)
        with parts.local.lock, storage.exclusive():
            parts.require_writable(len(rows))
            live = storage.ring.is_live(rows)
            if live.any():
                chosen = tensordict[live.to(tensordict.device or "cpu")]
                parts.writer.note_changes(chosen)
                storage.update_unmarked(rows[live], chosen)
                parts.changes += 1
        return live

    def _write_column(self, key: tuple[str, ...], value: Any) -> None:
        storage = self._parts.storage
        if not isinstance(storage, TensorStorage) or storage.structure is None:
            raise KeyError(f"{key} is no leaf of what is stored: there are none.")
        positions = positions_at(storage, slice(None))
        assert isinstance(positions, torch.Tensor)  # a slice means several rows
        if key[0] == TENSOR_KEY and len(key) > 1:
            key = key[1:]
        assert storage.store is not None  # it is made with the structure
        field = storage.store.schema[key]
        storage.replace_leaf(positions, key, _column_like(value, field, positions.shape))


def _with_numbers(
    storage: Storage, rows: Any, path: tuple[str, ...], where: torch.Tensor, numbers: torch.Tensor
) -> Any:
    """Tensordicts `[*where]` with what is known of each row, `[n, ...]`; other data as they are."""
    if not isinstance(rows, TensorDictBase) or rows.batch_size[: where.ndim] != where.shape:
        return rows
    if isinstance(storage, ListStorage):
        rows = rows.copy()  # one that is stored is the caller's
    # one number a row for every step of it, where rows are whole trajectories
    inner, more = rows.batch_size[where.ndim :], numbers.shape[1:]
    leaf = numbers.reshape((*where.shape, *[1] * len(inner), *more)).to(rows.device or "cpu")
    leaf = leaf.expand(*where.shape, *inner, *more).clone() if inner else leaf
    if type(rows) is TensorDict:
        insert(rows, path, leaf)
    else:
        rows.set(path, leaf)
    return rows


def batch_of_one(storage: Storage, element: Any, dim: int = 0) -> Any:
    """One element as a batch of one along a dimension."""
    if isinstance(storage, ListStorage):
        return [element]
    if isinstance(element, torch.Tensor) or is_tensor_collection(element):
        return element.unsqueeze(dim)
    return stacked([element])


def written_index(storage: Storage, positions: torch.Tensor, dim_extend: int) -> torch.Tensor:
    """The index of the rows of a write, in the order of the data."""
    if dim_extend:
        grid = positions.view(-1, *storage.columns)
        positions = grid.transpose(0, dim_extend).reshape(-1)
    return coordinates(storage, positions)


def require_numbers(numbers: torch.Tensor, cells: TensorDictBase) -> None:
    """Raises unless the leaves of some rows fit the row ids that they are to be written to."""
    if not isinstance(cells, TensorDictBase):
        raise TypeError(f"rows are a tensordict, got {type(cells).__name__}: wrap the leaves.")
    if getattr(numbers, "dtype", None) != torch.int64:
        kind = getattr(numbers, "dtype", type(numbers).__name__)
        raise TypeError(f"numbers of rows are an int64 tensor, got {kind}: use sample[keys.ROW].")
    if numbers.ndim != 1 or cells.batch_size[:1] != numbers.shape:
        raise ValueError(
            f"expected as many rows as numbers, got {list(cells.batch_size)} rows for numbers of "
            f"shape {list(numbers.shape)}."
        )


def row_ids_at(storage: Storage, index: Any) -> torch.Tensor:
    """The row ids of the rows at an index, as `coordinates` returns it: int64 `[N]`."""
    return row_ids_of(storage, positions_of(storage, index))[0]


def positions_of(storage: Storage, index: Any) -> torch.Tensor:
    """The positions of an index that `coordinates` returned, int64 `[N]`."""
    if storage.ndim == 1:
        return as_tensor(index).reshape(-1)
    # as int64, since a product of sizes does not fit the dtype of each
    found = whole_numbers(torch.stack(index, -1) if isinstance(index, tuple) else as_tensor(index))
    if not found.shape[-1:] == (storage.ndim,):
        raise IndexError(
            f"expected an index [N, {storage.ndim}] of a storage of {storage.ndim} dimensions,"
            f" got {list(found.shape)}."
        )
    dims = storage.arrangement.swapped(tuple(found.reshape(-1, storage.ndim).unbind(-1)))
    positions = torch.zeros_like(dims[0])
    for places, size in zip(dims, storage.shape, strict=True):
        if len(places) and not (places.min() >= 0 and places.max() < size):
            raise IndexError(
                f"no row is stored at every index: they are in {list(storage.shape)}, got "
                f"{int(places.min())} to {int(places.max())} along a dimension of {size}."
            )
        positions = positions * size + places
    return positions


def coordinates(storage: Storage, positions: torch.Tensor) -> torch.Tensor:
    """The index of some positions, such that `buffer[index]` gives their rows."""
    if storage.ndim == 1:
        return positions
    found = torch.unravel_index(positions, storage.shape)
    return torch.stack(storage.arrangement.swapped(found), -1)


def _positions_at(storage: Storage, index: Any) -> torch.Tensor | int:
    """The positions of an index; of one row, as a tensor or one of each column names it, too."""
    positions = positions_at(storage, index)
    is_one = isinstance(positions, torch.Tensor) and not positions.ndim
    return int(positions) if is_one else positions


def _as_key(index: NestedKey | Any) -> tuple[str, ...] | None:
    if isinstance(index, str):
        return (index,)
    if isinstance(index, tuple) and index and all(isinstance(part, str) for part in index):
        return index
    return None


def _leaf_of(rows: Any, key: tuple[str, ...], storage: Storage) -> Any:
    """One leaf of rows of any structure."""
    if isinstance(rows, torch.Tensor) and key == (TENSOR_KEY,):
        return rows
    if not is_tensor_collection(rows) and not isinstance(rows, dict):
        raise KeyError(f"a {type(storage).__name__} has no leaf {key}: use an index.")
    if key[0] == TENSOR_KEY and len(key) > 1 and rows.get(TENSOR_KEY, None) is None:
        key = key[1:]  # ("_data", key) names the leaf of a tensordict too
    if not isinstance(rows, dict):
        return keys.require(rows, key)
    found: Any = rows
    for name in key:
        if not isinstance(found, dict) or name not in found:
            raise KeyError(f"no leaf {key} in these rows: they are {take_apart(rows)[0]}.")
        found = found[name]
    return found


def _column_like(value: Any, field: Field, rows: torch.Size) -> torch.Tensor:
    """The value of one leaf of all rows: a tensor of its dtype, or numbers that are cast to it."""
    leaf = as_tensor(value)
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
