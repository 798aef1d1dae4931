"""Writes one row so that its observations are stored once, without arrays of one element."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.data.staged_row import Readers, StagedRows
from rl_replay.lossless.layout import SUCCESSOR
from rl_replay.lossless.rows import LosslessRows
from rl_slabs import Rows, Span
from rl_slabs.internals import LANE_SHIFT


class LosslessOneRow:
    """`SuccessorLinker.write` for a row that has a next observation one step away, on the host."""

    def __init__(self, store: LosslessRows, readers: Readers) -> None:
        layout, side = store.layout, store.side
        self._linker, self._side, self._addresses = store.linker, side, store.addresses
        with torch.inference_mode(mode=False):  # such tensors may be written in either mode
            row, slot = Rows.zeros(layout.stored, 1), Rows.zeros(side.schema, 1)
            rows, slots = row.view(), slot.view()
        row_columns, slot_columns = store.rows.columns(), side.rows.columns()
        packed, self._large, self._large_next = {}, [], []
        keys = layout.slot_keys(joined=store.joined)
        names = {pair.next: key for pair, key in zip(layout.pairs, keys, strict=True)}
        for field in layout.given.fields:
            name = names.get(field.path)
            place = layout.stored[field.path] if name is None else side.schema[name]
            if place.offset is not None:
                packed[field.path] = (rows if name is None else slots).get(place.key)[0]
            elif name is None:
                self._large.append((field.key, row_columns[place.key]))
            else:
                self._large_next.append((field.key, slot_columns[place.key]))
        staged = StagedRows(readers, layout.given.fields, packed)
        self.take, self.take_batch, self._leaves = staged.take, staged.take_batch, staged.leaves
        self._successor = None if layout.apart else row.columns()[SUCCESSOR[0]]
        self._touched, self._row, self._rows = store.rows, _words(row), _words(store.rows)
        self._slot, self._slots = _words(slot), _words(side.rows)

    def write(self, span: Span, back: NDArray[np.int32]) -> None:
        """Copies the staging row and slot into the store, next observations first."""
        position, number = span.rows.start, span.numbers.start  # type: ignore[union-attr]  # one row is a slice
        side, addresses, lane = self._side, self._addresses, number >> LANE_SHIFT
        former = int(addresses.values[position])
        owned = addresses.slots(former) if addresses.in_slots(former) else None
        if owned is None:
            side.make_room(lane, 1, addresses.slots_of_lane)
        self._touched.touches += 1
        # a slot of the overwritten row is free before the new row takes one
        if owned is not None:
            # and no row names it any more before it is free
            addresses.values[position] = 0
            side.release_one(lane, owned)
        slot = side.take_one(lane)
        if self._slots is not None and self._slot is not None:
            self._slots[slot] = self._slot[0]
        for key, column in self._large_next:
            column[slot] = self._leaves[key]
        # last, so that no reader takes a half written slot for whole
        side.owners[slot] = number
        address = addresses.of_slots(slot)
        if self._successor is not None:
            self._successor[0] = address
        if self._rows is not None and self._row is not None:
            self._rows[position] = self._row[0]
        for key, column in self._large:
            column[position] = self._leaves[key]
        if self._successor is None:
            addresses.values[position] = address
        self._linker.note_unlinked(slice(position, position + 1), span.numbers, back)


def _words(rows: Rows) -> NDArray[np.int64] | None:
    return None if rows.packed is None else rows.packed.numpy()
