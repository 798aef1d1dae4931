"""The rows of a storage as parts of a dump, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.checkpoint.contents import Contents, Destinations, Moves, destinations, lane_by_lane
from rl_replay.checkpoint.manifest import is_size
from rl_replay.checkpoint.parts import PIECE_BYTES, Chunks, Hold, Late, slices_of, taken_of
from rl_replay.checkpoint.reader import Archive
from rl_replay.compact.forms import (
    RowForm,
    check_compact,
    compact_parts,
    fill_store,
    is_compact,
)
from rl_replay.compact.order import CompactOrder
from rl_replay.data.structure import Structure
from rl_replay.lossless.layout import SUCCESSOR
from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages import ListStorage, Storage, TensorStorage
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_slabs import Rows, RowSchema, Window
from rl_slabs.internals import LANE_SHIFT

PLAIN, LOSSLESS = "plain", "lossless"
_STORE = "storage/store"


def storage_parts(storage: Storage, form: RowForm | None = None) -> dict[str, Any]:
    """The stored rows of a storage, as parts of a dump: as they lie, or in another form."""
    storage = _of_tensors(storage)
    storage.sync()
    window = storage.ring.window()
    if storage.store is None or storage.structure is None or not len(window):
        return {"capacity": storage.max_size, "count": 0}
    places = _places(window, storage.max_size)
    all_back, schema = torch.from_numpy(storage.back), schema_of(storage.store)
    back = torch.cat([all_back[place] for place in places])
    if form is None:
        rows = {"store": store_parts(storage.store, places, storage.session.hold)}
    else:
        positions = np.concatenate([np.arange(place.start, place.stop) for place in places])
        order = CompactOrder.of_links(back.numpy(), window.counts)
        rows = {"compact": compact_parts(form, storage.store, schema, positions, order)}
    return {
        "capacity": storage.max_size,
        "count": len(window),
        "first": list(window.first),
        "counts": list(window.counts),
        "order": storage.session.lane_order(),
        "columns": list(storage.columns),
        "dim_extend": storage.arrangement.dim_extend,
        "structure": storage.structure.to_plain(),
        "schema": schema.to_dict(),
        "back": back,
        "index": storage.session.index_state(),
        **rows,
        # last, when the rows are on the disk: older ones were overwritten while they were copied
        "floor": Late(lambda: storage.session.floor_since(window)),
    }


def load_storage(storage: Storage, archive: Archive) -> None:
    """Restores a dumped storage; everything is checked before the former rows are dropped."""
    storage = _of_tensors(storage)
    count, capacity = _counts(archive)
    if not count:
        storage.empty()
        return
    columns = stored_columns(archive)
    require_same_shape(archive.folder, storage, columns, archive.part("storage/dim_extend"))
    compact = is_compact(archive)
    if not compact:
        require_kind(storage.lossless is not False, archive)
    schema = RowSchema.from_dict(archive.read("storage/schema"))
    window = _window(archive)
    contents = Contents(
        Structure.from_plain(archive.read("storage/structure")).require_classes(),
        schema,
        columns,
        window,
        archive.read("storage/index") if "storage/index/words" in archive.names() else None,
        tuple(archive.part("storage/floor")),
        archive.part("storage/order") if "storage/order" in archive.names() else None,
    )
    room, lanes = storage.capacity_for(columns), len(storage.ring.window().first)
    contents = contents.in_room(capacity, room, lanes)
    if compact:
        check_compact(archive, schema, count)
    if not compact and storage.store is not None and schema_of(storage.store) == schema:
        require_fitting(storage.store, archive)
    moves = Moves(contents.runs(), count, capacity // len(window.first), room // lanes)

    def write_in_order(cells: Any, store: RowStore, links: NDArray[np.int32]) -> None:
        back = archive.part("storage/back").numpy()
        for run in contents.runs():
            positions, offsets = run.positions(moves.each), back[run.rows]
            offsets = run.inside(offsets) if contents.joins else offsets
            links[positions] = offsets
            store.write(torch.from_numpy(positions), run.numbers, cells[run.rows], offsets)
            if store.linker is not None:
                store.linker.link_predecessors(run.numbers)

    def fill(store: RowStore, links: NDArray[np.int32]) -> None:
        if compact:
            positions, _ = moves.positions()
            write = partial(write_in_order, store=store, links=links)
            fill_store(archive, store, schema, positions, write)
        else:
            require_fitting(store, archive)
            load_store(store, archive, moves)
        archive.read_into("storage/back", destinations(torch.from_numpy(links), moves.places()))

    storage.stand(contents, fill)


def _counts(archive: Archive) -> tuple[int, int]:
    """How many rows were stored, and the capacity of their storage."""
    count, capacity = archive.part("storage/count"), archive.part("storage/capacity")
    if not is_size(count) or not is_size(capacity):
        raise ValueError(
            f"{archive.folder} holds {count!r} rows of {capacity!r}, which is no storage."
        )
    return count, capacity


def stored_columns(archive: Archive) -> torch.Size:
    """The dimensions of the storage of a dump after the first."""
    columns = archive.part("storage/columns")
    if not isinstance(columns, list) or not all(is_size(n) and 0 < n < 1 << 40 for n in columns):
        raise ValueError(f"{archive.folder} names no columns of a storage: {columns!r}.")
    return torch.Size(columns)


def _window(archive: Archive) -> Window:
    """The row ids of a dump, none of them twice and no more than its lanes have room for."""
    first, counts, floor, count, capacity = (
        archive.part(f"storage/{name}")
        for name in ("first", "counts", "floor", "count", "capacity")
    )
    window = checked_window(archive.folder, first, counts, floor, capacity)
    if sum(counts) != count:
        raise ValueError(f"{archive.folder} holds {count} rows, not {sum(counts)} of {counts}.")
    return window


def checked_window(folder: Path, first: Any, counts: Any, floor: Any, capacity: Any) -> Window:
    """The row ids that a dump names; a `ValueError` unless its lanes have room for them."""
    lists = (first, counts, floor)
    whole = all(isinstance(part, list) and all(map(is_size, part)) for part in lists)
    whole = whole and is_size(capacity)
    if not whole or not 0 < len(first) == len(counts) == len(floor) <= capacity:
        raise ValueError(f"{folder} names no rows: {first!r}, {counts!r}, {floor!r}.")
    each = capacity // len(first)
    for lane, (low, rows, whole_from) in enumerate(zip(first, counts, floor, strict=True)):
        base = lane << LANE_SHIFT
        inside = base <= low < base + (1 << LANE_SHIFT - 1) and rows <= each
        if not inside or not base <= whole_from <= base + (1 << LANE_SHIFT - 1):
            raise ValueError(
                f"{folder} holds rows {low} to {low + rows} in lane {lane}, which has room for "
                f"{each}. Restore it from a copy."
            )
    return Window(tuple(first), tuple(counts))


def _places(window: Window, capacity: int) -> list[slice]:
    """The positions of rows, lane by lane."""
    each = capacity // len(window.first)
    return [place for run in lane_by_lane(window, window.first) for place in run.places(each)]


def refused_objects(storage: Storage) -> NotImplementedError:
    """The error of a dump of any objects."""
    return NotImplementedError(
        f"a {type(storage).__name__} holds objects of any kind, which only pickles could keep, and "
        "loading a pickle runs code. Store tensors or tensordicts in a LazyTensorStorage, or keep "
        "state_dict() yourself."
    )


def _of_tensors(storage: Storage) -> TensorStorage:
    if isinstance(storage, ListStorage):
        raise refused_objects(storage)
    if not isinstance(storage, TensorStorage):
        raise TypeError(
            f"a {type(storage).__name__} cannot be dumped: only storages of tensors can."
        )
    return storage


def require_same_shape(
    source: object, storage: TensorStorage, columns: Sequence[int], dim_extend: int
) -> None:
    """Raises unless rows come from a storage of the same dimensions, which grew along the same."""
    ours = storage.ndim, storage.arrangement.dim_extend
    if (1 + len(columns), dim_extend) != ours:
        raise ValueError(
            f"{source} is of a storage of {1 + len(columns)} dimensions that grows along dimension "
            f"{dim_extend}, this one has {ours[0]} and grows along {ours[1]}: make one of the same "
            "shape."
        )


def schema_of(store: RowStore) -> RowSchema:
    """The leaves of the rows as they were given to a store."""
    return store.layout.given if isinstance(store, LosslessRows) else store.schema


def store_parts(store: RowStore, places: Sequence[slice], hold: Hold) -> dict[str, Any]:
    """Some rows of a store; of a lossless one also their successors and overflow slots."""
    if isinstance(store, PlainRows):
        return {"kind": PLAIN, "rows": _rows_parts(store.rows, places, hold)}
    successor = np.concatenate([store.successor_of(place) for place in places])
    slots = np.sort(~successor[successor < 0])
    chosen = torch.from_numpy(slots.astype(np.int64))
    leaves, rows = store.side.rows, chosen.to(store.device)
    if store.joined:
        leaves, rows = _slots(store, len(slots)), torch.arange(len(slots), device="cpu")
        for ours, theirs in _paired_columns(store, leaves):
            theirs[: len(slots)] = ours[slots]
    found: dict[str, Any] = {"slots": slots, "owners": store.side.owners[slots]}
    if leaves.packed is not None:
        found["packed"] = taken_of(leaves.packed, rows)
    arrays = {name: taken_of(array, rows) for name, array in _named(leaves)}
    kept = _rows_parts(store.rows, places, hold)
    named: dict[str, Any] = {"successor": successor} if store.layout.apart else {}
    return {
        "kind": LOSSLESS,
        "keys": [list(pair.root) for pair in store.layout.pairs],
        "rows": kept | (named or {"packed": _by_distance(store, places)}),
        "side": found | {"arrays": arrays},
        "misses": store.misses,
        "reach": store.reach,
    }


def require_kind(lossless: bool, archive: Archive) -> None:
    """Raises unless a dump holds rows of this kind, lossless or not."""
    kind = archive.part(f"{_STORE}/kind")
    mine = LOSSLESS if lossless else PLAIN
    if kind != mine:
        raise ValueError(
            f"{archive.folder} holds {kind} rows, this storage keeps {mine} ones: make it with "
            f"lossless={kind == LOSSLESS}."
        )


def require_fitting(store: RowStore, archive: Archive) -> None:
    """Raises unless `load_store` can fill this store."""
    require_kind(isinstance(store, LosslessRows), archive)
    if isinstance(store, LosslessRows):
        keys = archive.part(f"{_STORE}/keys")
        ours = [list(pair.root) for pair in store.layout.pairs]
        if keys != ours:
            raise ValueError(
                f"{archive.folder} keeps {keys} once, this storage {ours}: name the same "
                "observations in lossless=."
            )


def load_store(store: RowStore, archive: Archive, moves: Moves) -> None:
    """Fills a cleared store with the rows that `store_parts` described."""
    places = moves.places()
    if isinstance(store, LosslessRows):
        slots = archive.part(f"{_STORE}/side/slots")
        store.clear()
        store.prepare(len(slots))
        _load_rows(store.rows, archive, f"{_STORE}/rows", places)
        if store.layout.apart:
            archive.read_into(f"{_STORE}/rows/successor", destinations(store.links, places))
        first: Destinations = [slice(0, len(slots))]
        if store.joined:
            overflow = _slots(store, len(slots))
            _load_rows(overflow, archive, f"{_STORE}/side", first)
            for ours, theirs in _paired_columns(store, overflow):
                ours[: len(slots)] = theirs[: len(slots)]
        else:
            _load_rows(store.side.rows, archive, f"{_STORE}/side", first)
        positions, numbers = moves.positions()
        store.resume(
            positions,
            numbers,
            moves.distances(store.links[positions].cpu().numpy()),
            slots,
            moves.renumbered(archive.part(f"{_STORE}/side/owners")),
        )
        store.expect(misses=archive.part(f"{_STORE}/misses"), reach=archive.part(f"{_STORE}/reach"))
    elif isinstance(store, PlainRows):
        _load_rows(store.rows, archive, f"{_STORE}/rows", places)


def _rows_parts(rows: Rows, places: Sequence[slice], hold: Hold) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rows.packed is not None:
        found["packed"] = slices_of(rows.packed, places, hold)
    arrays = {name: slices_of(array, places, hold) for name, array in _named(rows)}
    return found | {"arrays": arrays}


def _slots(store: LosslessRows, count: int) -> Rows:
    """Overflow slots in the layout of dumps, which has no gaps between observations."""
    return Rows.zeros(store.layout.side, max(1, count))


def _paired_columns(store: LosslessRows, slots: Rows) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """For each observation its column in the overflow slots of the store, and in dumped ones."""
    ours, theirs = store.side.rows.columns(), slots.columns()
    stored = store.layout.stored
    return [(ours[stored[pair.root].key], theirs[pair.name]) for pair in store.layout.pairs]


def _by_distance(store: LosslessRows, places: Sequence[slice]) -> Chunks:
    """The packed rows, which name successors by distance, so that any positions suit them."""
    packed = store.rows.packed
    assert packed is not None  # the successor of each row is packed
    column = (store.layout.stored[SUCCESSOR].offset or 0) // 4
    step = max(1, PIECE_BYTES // store.layout.stored.row_bytes)

    def pieces() -> Iterator[torch.Tensor]:
        for place in places:
            for start in range(place.start, place.stop, step):
                part = slice(start, min(start + step, place.stop))
                rows = packed[part].clone()
                away = torch.from_numpy(store.successor_of(part))
                rows.view(torch.int32)[:, column] = away.to(rows.device)
                yield rows

    count = sum(len(packed[place]) for place in places)
    return Chunks(packed.dtype, (count, *packed.shape[1:]), pieces)


def _load_rows(rows: Rows, archive: Archive, under: str, places: Destinations) -> None:
    if rows.packed is not None:
        archive.read_into(f"{under}/packed", destinations(rows.packed, places))
    for name, array in _named(rows):
        archive.read_into(f"{under}/arrays/{name}", destinations(array, places))


def _named(rows: Rows) -> Iterator[tuple[str, torch.Tensor]]:
    """Large leaves by their place in the schema, since any string may be the name of a leaf."""
    for number, field in enumerate(rows.schema.large):
        yield str(number), rows.arrays[field.path]
