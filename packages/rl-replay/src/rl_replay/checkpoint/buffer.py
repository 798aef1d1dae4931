"""Dumps of a whole buffer."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.buffer.parts import BufferParts
from rl_replay.checkpoint.contents import Contents
from rl_replay.checkpoint.moves import Moves, lane_by_lane, targets
from rl_replay.checkpoint.parts import Late
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.rows import (
    load_store,
    require_fitting,
    require_kind,
    schema_of,
    store_parts,
)
from rl_replay.checkpoint.state_dict import require_same_kind, restore, state_without_rows
from rl_replay.checkpoint.writer import dump
from rl_replay.data.structure import Structure
from rl_replay.samplers import Sampler
from rl_replay.storages import ListStorage, Storage, TensorStorage
from rl_replay.storages.row_store import RowStore
from rl_replay.writers import Writer
from rl_slabs import RowSchema, Window
from rl_slabs.internals import LANE_SHIFT


def storage_parts(storage: Storage) -> dict[str, Any]:
    """The stored rows of a storage, as parts of a dump."""
    storage = _of_tensors(storage)
    storage.sync()
    window = storage.ring.window()
    if storage.store is None or storage.structure is None or not len(window):
        return {"capacity": storage.max_size, "count": 0}
    places = _places(window, storage.max_size)
    back = torch.from_numpy(storage.back)
    return {
        "capacity": storage.max_size,
        "count": len(window),
        "first": list(window.first),
        "counts": list(window.counts),
        "order": storage.session.lane_order(),
        "columns": list(storage.columns),
        "dim_extend": storage.arrangement.dim_extend,
        "structure": storage.structure.to_plain(),
        "schema": schema_of(storage.store).to_dict(),
        "back": torch.cat([back[place] for place in places]),
        "index": storage.session.index_state(),
        "store": store_parts(storage.store, places, copied=storage.is_shared),
        # last, when the rows are on the disk: older ones were overwritten while they were copied
        "floor": Late(lambda: storage.session.floor_since(window)),
    }


def load_storage(storage: Storage, archive: Archive, under: str = "storage") -> None:
    """Restores a dumped storage; everything is checked before the former rows are dropped."""
    storage = _of_tensors(storage)
    count, capacity = archive.part(f"{under}/count"), archive.part(f"{under}/capacity")
    if not _is_count(count) or not _is_count(capacity):
        raise ValueError(
            f"{archive.folder} holds {count!r} rows of {capacity!r}, which is no storage."
        )
    if not count:
        storage.empty()
        return
    columns = _columns(archive, under)
    _require_same_shape(storage, archive, under, columns)
    require_kind(storage.lossless is not False, archive, f"{under}/store")
    schema = RowSchema.from_dict(archive.read(f"{under}/schema"))
    window = _window(archive, under)
    contents = Contents(
        Structure.from_plain(archive.read(f"{under}/structure")).require_classes(),
        schema,
        columns,
        window,
        archive.read(f"{under}/index") if f"{under}/index/words" in archive.names() else None,
        tuple(archive.part(f"{under}/floor")),
        archive.part(f"{under}/order") if f"{under}/order" in archive.names() else None,
    )
    room, lanes = storage.capacity_for(columns), len(storage.ring.window().first)
    contents = contents.in_room(capacity, room, lanes)
    if storage.store is not None and schema_of(storage.store) == schema:
        require_fitting(storage.store, archive, f"{under}/store")
    moves = Moves(contents.runs(), count, capacity // len(window.first), room // lanes)

    def fill(store: RowStore, links: NDArray[np.int32]) -> None:
        require_fitting(store, archive, f"{under}/store")
        load_store(store, archive, f"{under}/store", moves)
        archive.read_into(f"{under}/back", targets(torch.from_numpy(links), moves.places()))

    storage.stand(contents, fill)


def dump_buffer(parts: BufferParts, path: str | os.PathLike[str]) -> None:
    """Writes the storage, sampler, writer, transforms and generator of a buffer; see `dump`."""
    state = state_without_rows(parts)
    tree = {
        "storage": storage_parts(parts.storage),
        "sampler": _with_kind(parts.sampler, state["sampler"]),
        "writer": _with_kind(parts.writer, state["writer"]),
        "transform": state["transform"],
        "batch_size": state["batch_size"],
        "generator": state["rng"],
    }
    with parts.storage.read_ahead():
        dump(path, tree)


def load_buffer(parts: BufferParts, path: str | os.PathLike[str]) -> None:
    """Restores a dumped buffer, whose next samples are the same."""
    with Archive(path) as archive:
        archive.verify()
        for name, part in (("sampler", parts.sampler), ("writer", parts.writer)):
            rows = ", or leave it as it is and take the rows by loads(path, rows_only=True)"
            require_same_kind(path, name, archive.part(f"{name}/kind"), part, rows)
        state = {
            "sampler": archive.read("sampler/state"),
            "writer": archive.read("writer/state"),
            "transform": archive.read("transform"),
            "batch_size": archive.part("batch_size"),
            "rng": archive.part("generator"),
        }
        first = archive.part("storage/first") if "storage/first" in archive.names() else None
        kept = archive.part("storage/capacity")
        size = (kept, len(first)) if isinstance(first, list) else None
        restore(parts, state, lambda: load_storage(parts.storage, archive), size)


def load_rows(parts: BufferParts, path: str | os.PathLike[str]) -> None:
    """Restores the rows of a dumped buffer, and begins a new epoch of this one's sampler."""
    with Archive(path) as archive:
        archive.verify()
        load_storage(parts.storage, archive)
    parts.sampler.reset()


def _columns(archive: Archive, under: str) -> torch.Size:
    columns = archive.part(f"{under}/columns")
    if not isinstance(columns, list) or not all(_is_count(n) and 0 < n < 1 << 40 for n in columns):
        raise ValueError(f"{archive.folder} names no columns of a storage: {columns!r}.")
    return torch.Size(columns)


def _window(archive: Archive, under: str) -> Window:
    """The row ids of a dump, none of them twice and no more than its lanes have room for."""
    first, counts, floor, count, capacity = (
        archive.part(f"{under}/{name}")
        for name in ("first", "counts", "floor", "count", "capacity")
    )
    lists = (first, counts, floor)
    whole = all(isinstance(part, list) and all(map(_is_count, part)) for part in lists)
    if not whole or not 0 < len(first) == len(counts) == len(floor) <= capacity:
        raise ValueError(f"{archive.folder} names no rows: {first!r}, {counts!r}, {floor!r}.")
    each = capacity // len(first)
    for lane, (low, rows, whole_from) in enumerate(zip(first, counts, floor, strict=True)):
        base = lane << LANE_SHIFT
        inside = base <= low < base + (1 << LANE_SHIFT - 1) and rows <= each
        if not inside or not base <= whole_from <= base + (1 << LANE_SHIFT - 1):
            raise ValueError(
                f"{archive.folder} holds rows {low} to {low + rows} in lane {lane}, which has room "
                f"for {each}. Restore it from a copy."
            )
    if sum(counts) != count:
        raise ValueError(f"{archive.folder} holds {count} rows, not {sum(counts)} of {counts}.")
    return Window(tuple(first), tuple(counts))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _with_kind(part: Sampler | Writer, state: dict[str, Any]) -> dict[str, Any]:
    return {"kind": type(part).__name__, "state": dict(state)}


def _places(window: Window, capacity: int) -> list[slice]:
    """The positions of rows, lane by lane."""
    each = capacity // len(window.first)
    return [place for run in lane_by_lane(window, window.first) for place in run.places(each)]


def _of_tensors(storage: Storage) -> TensorStorage:
    if isinstance(storage, ListStorage):
        raise NotImplementedError(
            "a ListStorage holds objects of any kind, which only pickles could keep, and loading "
            "a pickle runs code. Store tensors or tensordicts in a LazyTensorStorage, or keep "
            "state_dict() yourself."
        )
    if not isinstance(storage, TensorStorage):
        raise TypeError(
            f"a {type(storage).__name__} cannot be dumped: only storages of tensors can."
        )
    return storage


def _require_same_shape(
    storage: TensorStorage, archive: Archive, under: str, columns: torch.Size
) -> None:
    dim = archive.part(f"{under}/dim_extend")
    if dim != storage.arrangement.dim_extend or (columns and len(columns) != storage.ndim - 1):
        raise ValueError(
            f"{archive.folder} is of a storage with columns {list(columns)} that grows along "
            f"dimension {dim}, this one has {storage.ndim} dimensions and grows along "
            f"{storage.arrangement.dim_extend}: make one of the same shape."
        )
