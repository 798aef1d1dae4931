"""The rows of a store as parts of a dump, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.checkpoint.moves import Moves, Targets, targets
from rl_replay.checkpoint.parts import PIECE_BYTES, Chunks, slices_of, taken_of
from rl_replay.checkpoint.reader import Archive
from rl_replay.lossless.layout import SUCCESSOR
from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_slabs import Rows, RowSchema

PLAIN, LOSSLESS = "plain", "lossless"


def schema_of(store: RowStore) -> RowSchema:
    """The leaves of the rows as they were given to a store."""
    return store.layout.given if isinstance(store, LosslessRows) else store.schema


def store_parts(
    store: RowStore, places: Sequence[slice], *, copied: bool = False
) -> dict[str, Any]:
    """Some rows of a store; of a lossless one also their successors and overflow slots."""
    if isinstance(store, PlainRows):
        return {"kind": PLAIN, "rows": _rows_parts(store.rows, places, copied)}
    if not isinstance(store, LosslessRows):
        raise TypeError(f"a {type(store).__name__} cannot be dumped: it is not a store of ours.")
    successor = np.concatenate([store.successor_of(place) for place in places])
    slots = np.sort(~successor[successor < 0])
    chosen = torch.from_numpy(slots.astype(np.int64))
    leaves, rows = store.side.rows, chosen.to(store.device)
    if store.joined:
        leaves, rows = _slots(store, len(slots)), torch.arange(len(slots))
        for ours, theirs in _columns(store, leaves):
            theirs[: len(slots)] = ours[slots]
    found: dict[str, Any] = {"slots": slots, "owners": store.side.owners[slots]}
    if leaves.packed is not None:
        found["packed"] = taken_of(leaves.packed, rows)
    arrays = {name: taken_of(array, rows) for name, array in _named(leaves)}
    kept = _rows_parts(store.rows, places, copied)
    named: dict[str, Any] = {"successor": successor} if store.layout.apart else {}
    return {
        "kind": LOSSLESS,
        "keys": [list(pair.root) for pair in store.layout.pairs],
        "rows": kept | (named or {"packed": _by_distance(store, places)}),
        "side": found | {"arrays": arrays},
        "misses": store.misses,
        "reach": store.reach,
    }


def require_kind(lossless: bool, archive: Archive, under: str) -> None:
    """Raises unless a dump holds rows of this kind, lossless or not."""
    kind = archive.part(f"{under}/kind")
    mine = LOSSLESS if lossless else PLAIN
    if kind != mine:
        raise ValueError(
            f"{archive.folder} holds {kind} rows, this storage keeps {mine} ones: make it with "
            f"lossless={kind == LOSSLESS}."
        )


def require_fitting(store: RowStore, archive: Archive, under: str) -> None:
    """Raises unless `load_store` can fill this store."""
    require_kind(isinstance(store, LosslessRows), archive, under)
    if isinstance(store, LosslessRows):
        keys = archive.part(f"{under}/keys")
        ours = [list(pair.root) for pair in store.layout.pairs]
        if keys != ours:
            raise ValueError(
                f"{archive.folder} keeps {keys} once, this storage {ours}: name the same "
                "observations in lossless=."
            )


def load_store(
    store: RowStore,
    archive: Archive,
    under: str,
    moves: Moves,
) -> None:
    """Fills a cleared store with the rows that `store_parts` described."""
    places = moves.places()
    if isinstance(store, LosslessRows):
        slots = archive.part(f"{under}/side/slots")
        store.clear()
        store.prepare(len(slots))
        _load_rows(store.rows, archive, f"{under}/rows", places)
        if store.layout.apart:
            archive.read_into(f"{under}/rows/successor", targets(store.links, places))
        first: Targets = [slice(0, len(slots))]
        if store.joined:
            overflow = _slots(store, len(slots))
            _load_rows(overflow, archive, f"{under}/side", first)
            for ours, theirs in _columns(store, overflow):
                ours[: len(slots)] = theirs[: len(slots)]
        else:
            _load_rows(store.side.rows, archive, f"{under}/side", first)
        positions, numbers = moves.positions()
        store.resume(
            positions,
            numbers,
            moves.distances(store.links[positions].cpu().numpy()),
            slots,
            moves.renumbered(archive.part(f"{under}/side/owners")),
        )
        store.expect(misses=archive.part(f"{under}/misses"), reach=archive.part(f"{under}/reach"))
    elif isinstance(store, PlainRows):
        _load_rows(store.rows, archive, f"{under}/rows", places)


def _rows_parts(rows: Rows, places: Sequence[slice], copied: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rows.packed is not None:
        found["packed"] = slices_of(rows.packed, places, copied=copied)
    arrays = {name: slices_of(array, places, copied=copied) for name, array in _named(rows)}
    return found | {"arrays": arrays}


def _slots(store: LosslessRows, count: int) -> Rows:
    """Overflow slots in the layout of dumps, which has no gaps between observations."""
    return Rows.zeros(store.layout.side, max(1, count))


def _columns(store: LosslessRows, slots: Rows) -> list[tuple[NDArray[Any], NDArray[Any]]]:
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


def _load_rows(rows: Rows, archive: Archive, under: str, places: Targets) -> None:
    if rows.packed is not None:
        archive.read_into(f"{under}/packed", targets(rows.packed, places))
    for name, array in _named(rows):
        archive.read_into(f"{under}/arrays/{name}", targets(array, places))


def _named(rows: Rows) -> Iterator[tuple[str, torch.Tensor]]:
    """Large leaves by their place in the schema, since any string may be the name of a leaf."""
    for number, field in enumerate(rows.schema.large):
        yield str(number), rows.arrays[field.path]
