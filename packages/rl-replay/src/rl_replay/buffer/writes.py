"""What is written to a buffer, on its way to the storage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.buffer.indexing import written_index
from rl_replay.buffer.parts import BufferParts
from rl_replay.linking.markers import Extent
from rl_replay.storages import TensorStorage
from rl_slabs import Span
from rl_tensordict.types import KeyPath


def store(parts: BufferParts, data: Any, *, elements: bool = False) -> torch.Tensor:
    """Stores a batch, of `elements` or of rows, and returns the index of its rows."""
    storage = parts.storage
    if parts.writer.places_rows:
        parts.sampler.catch_up(storage)  # what it knows is by row ids, which change
        index = parts.transform.store_by(parts.writer, storage, data, elements=elements)
        parts.writer.tell(storage, parts.sampler)
        note_write(parts)
        return index
    if elements or parts.transform.changes:
        span = parts.transform.store(storage, data, elements=elements)
    else:
        span = storage.extend(data)
    if span is None:  # transforms hold all of it back
        shape = (0,) if storage.ndim == 1 else (0, storage.ndim)
        return torch.empty(shape, dtype=torch.int64)
    note_write(parts)
    positions = positions_of(span)
    several = storage.arrangement.ndim > 1 and storage.columns
    return written_index(storage, positions, parts.dim_extend) if several else positions


def note_write(parts: BufferParts) -> None:
    """Invalidates prefetched batches, and wakes the threads that wait for rows."""
    parts.changes += 1
    if parts.local.waiting:
        parts.local.written.notify_all()


def positions_of(span: Span) -> torch.Tensor:
    """The positions of the rows of a write, int64 `[n]`."""
    rows = span.rows
    # numpy takes half of torch's time
    return torch.from_numpy(np.arange(rows.start, rows.stop)) if isinstance(rows, slice) else rows


def is_ours(method: Any) -> bool:
    """Whether a method is one that this package defines."""
    # not by its module, which `functools.wraps` copies
    names = getattr(getattr(method, "__func__", None), "__globals__", {})
    return str(names.get("__name__")).startswith("rl_replay.")


def store_arrays(parts: BufferParts, arrays: Mapping[KeyPath, NDArray[Any]], count: int) -> bool:
    """Stores rows along time from arrays `[count, ...]` that match those stored; whether it did."""
    storage = parts.storage
    if not isinstance(storage, TensorStorage):
        return False
    with parts.local.lock:
        if parts.checks_writes or parts.transform.changes or parts.writer.places_rows:
            return False
        session = storage.session
        table = session.sync()
        if session.is_open or table is None or not 0 < count <= session.ring.span_limit:
            return False
        readers = None if table.readers is None else table.readers.tensordicts
        known = None if readers is None else readers.of_arrays(arrays, count)
        if known is None:
            return False
        session.require_own()
        table.append(session, known, _steps_of(count))
        note_write(parts)
    return True


@lru_cache(maxsize=64)
def _steps_of(count: int) -> Extent:
    return Extent(count, 1, count, named=True)
