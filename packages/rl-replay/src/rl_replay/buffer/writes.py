"""Writes that are no `storage.extend`: rows that a writer places, and arrays of a collector."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray

from rl_replay.buffer.parts import BufferParts
from rl_replay.linking.markers import Extent
from rl_replay.storages import TensorStorage
from rl_tensordict.types import KeyPath


def store_in_place(parts: BufferParts, data: Any, *, elements: bool) -> torch.Tensor:
    """Lets a writer that places rows store a batch; the index of its rows, -1 for refused ones."""
    storage = parts.storage
    parts.sampler.catch_up(storage)  # what it knows is by row ids, which change
    index = parts.transform.store_by(parts.writer, storage, data, elements=elements)
    parts.writer.tell(storage, parts.sampler)
    return index


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
    return True


@lru_cache(maxsize=64)
def _steps_of(count: int) -> Extent:
    return Extent(count, 1, count, named=True)
