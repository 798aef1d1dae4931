"""Rows whose observations are stored once and read back bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_layout.keys import NEXT_MISSING
from rl_replay.lossless.gather import Gather, GatherPlan, SuccessorRows
from rl_replay.lossless.layout import SUCCESSOR, LosslessLayout
from rl_replay.lossless.linker import Addresses, SuccessorLinker
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.update import update_rows
from rl_replay.lossless.writer import LosslessWriter
from rl_slabs import Rows, RowSchema, Slab
from rl_slabs.internals import (
    RowIndex,
    positive,
    require_inside,
    select,
)
from rl_tensordict import CPU, as_tensor
from rl_tensordict.types import NestedKey

ALL_VALID = torch.ones((), dtype=torch.bool, device=CPU)
"""All rows that were read are what was written, if the ring accepts them."""

FEW_LINKS = 0.5
"""Lossless storage with a smaller share of linked rows saves little."""


class LosslessRows:
    """Rows that keep each observation once: a row addresses the row with its next one."""

    # A row's next observation is the observation of the row that continues it, wherever and
    # whenever that one is written, if the two have equal bits; else it is in an overflow table. On
    # n-step rows it is the row so many steps further on. Both come back bit for bit, whatever the
    # dtype.

    def __init__(
        self,
        layout: LosslessLayout,
        rows: Rows,
        side: OverflowTable,
        *,
        back: NDArray[np.integer[Any]] | None = None,
        on_host: bool | None = None,
    ) -> None:
        layout.stored.require_equal(rows.schema)
        layout.require_addresses(len(rows))
        self.layout, self.schema, self.side = layout, layout.schema, side
        self.rows, self._count = rows, len(rows)
        self.device = next(t.device for t in (rows.packed, *rows.arrays.values()) if t is not None)
        # whether numpy works on the rows in place
        self._on_host = self.device.type == "cpu" if on_host is None else on_host
        self.links = self._links()
        alone = side.memory.kind == "private"
        self.addresses = Addresses(
            self.links,
            lanes=side.lanes,
            alone=alone,
            on_host=self._on_host,
            misses=layout.may_miss,
        )
        self.reader = Gather(layout, rows, side, self.links)
        self.linker = SuccessorLinker(
            layout, rows, side, self.addresses, back, on_host=self._on_host
        )
        writer = LosslessWriter(self.linker, rows, on_host=self._on_host)
        self.write = writer.write  # the same call, one frame less
        self.joined = side.space is not None
        self._whole = GatherPlan(layout, None)
        self._unpack = self._whole.unpack[True, False]
        self._plans: dict[tuple[NestedKey, ...] | None, GatherPlan] = {None: self._whole}

    @classmethod
    def zeros(
        cls,
        schema: RowSchema,
        capacity: int,
        *,
        keys: Iterable[NestedKey] | None = None,
        back: NDArray[np.integer[Any]] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Allocates rows in private memory."""
        capacity = positive(capacity, "capacity")
        return cls.allocate(LosslessLayout(schema, keys), capacity, back=back, device=device)

    @classmethod
    def allocate(
        cls,
        layout: LosslessLayout,
        capacity: int,
        *,
        back: NDArray[np.integer[Any]] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Allocates rows in private memory, in one with their slots where all leaves are packed."""
        layout.require_addresses(capacity)
        if torch.device(device or "cpu").type == "cpu" and layout.joins:
            slab = Slab.private(layout.stored, capacity, spare=capacity)
            side = OverflowTable(layout.stored, capacity, slab=slab)
            return cls(layout, slab.rows, side, back=back)
        rows = Rows.zeros(layout.stored, capacity, device=device)
        return cls(layout, rows, OverflowTable(layout.side, capacity, device=device), back=back)

    def _links(self) -> torch.Tensor:
        """The address of each row's next observation, int32 `[rows]`, live."""
        if not self.layout.apart:
            found: torch.Tensor = self.rows.view().get(SUCCESSOR[0])
            return found
        if not self._on_host:
            return torch.zeros(self._count, dtype=torch.int32, device=self.device)
        self.side.secure_links()
        return torch.from_numpy(self.side.links)

    def __len__(self) -> int:
        return self._count

    def read(
        self,
        rows: RowIndex,
        *,
        keys: Sequence[NestedKey] | None = None,
        contiguous: bool = False,
    ) -> TensorDict:
        """A copy of some rows with their next observations; see `rl_slabs.Rows.read`."""
        plan = self._whole if keys is None else self.plan(keys)
        if plan.plain is not None:
            return self.rows.read(rows, keys=plan.plain, contiguous=contiguous)
        index, shape = self._index(rows)
        found = self._gathered(plan, index, None)
        return self._finish(plan, found, shape, contiguous)

    def gather(self, rows: torch.Tensor) -> TensorDict:
        """`read` for rows that are known to exist."""
        if not self._on_host or self.addresses.misses:
            return self.read(rows)
        if self.joined:
            words, nexts, _ = self.reader.joined(rows.numpy())
            return self._unpack(words, [], rows.shape, nexts)
        packed, arrays, _ = self.reader.on_cpu(self._whole, rows)
        return self._unpack(packed[0], arrays, rows.shape, *packed[1:])

    def read_concurrent(
        self,
        positions: torch.Tensor,
        numbers: torch.Tensor,
        *,
        keys: Sequence[NestedKey] | None = None,
        unchanged: Callable[[], bool] | None = None,
    ) -> tuple[TensorDict, torch.Tensor]:
        """A copy of some rows, and which of them no writer changed in the meantime."""
        # A row that is valid here, and whose id the ring accepts afterwards, is what was written,
        # and so is its next observation. The address of such a row leads
        # - to another row: that one is younger, so it is live as long as this one;
        # - or to a slot. Slots are filled only by write, after a reservation, or by update, and
        #   only while no live row addresses them.
        # So nothing more is checked if no writer reserved or updated during the copy. Linking older
        # rows meanwhile does no harm: slot and row hold the same bits. Else addresses are compared
        # again, and the owners of slots: a slot may have been released and filled for another row.
        plan, places = self._whole if keys is None else self.plan(keys), positions.numpy()
        if plan.plain is not None:
            return self.rows.read(positions, keys=plan.plain), ALL_VALID
        # one gather for rows and slots, without a mask of missing observations
        quick = self.joined and plan is self._whole and not self.addresses.misses
        if quick and places.ndim == 1:
            words, nexts, addresses = self.reader.joined(places)
            found = self._unpack(words, [], positions.shape, nexts)
        else:
            places = places.reshape(-1)
            # read before the rows: an address is written after what it leads to
            addresses, (index, shape) = self.addresses.values[places], self._index(positions)
            gathered = self._gathered(plan, index, addresses.astype(np.int64))
            found = self._finish(plan, gathered, shape, False)
        if unchanged is not None and unchanged():
            return found, ALL_VALID
        valid = self._valid(places.reshape(-1), addresses, numbers.numpy().reshape(-1))
        return found, valid.view(positions.shape)

    def _valid(
        self,
        places: NDArray[np.int64],
        addresses: NDArray[np.integer[Any]],
        numbers: NDArray[np.int64],
    ) -> torch.Tensor:
        """Which rows have unchanged addresses, and slots that they still own."""
        valid = addresses == self.addresses.values[places]
        in_slots = self.addresses.in_slots(addresses).nonzero()[0]
        if in_slots.size:
            slots = self.addresses.slots(addresses[in_slots])
            # an equal address may be a slot that another row has taken since
            valid[in_slots] &= self.side.owners[slots] == numbers[in_slots]
        return torch.from_numpy(valid)

    def update(
        self,
        rows: RowIndex,
        numbers: torch.Tensor,
        cells: TensorDictBase,
        back: NDArray[np.integer[Any]],
    ) -> None:
        """Updates some leaves in place; next observations of all other rows stay."""
        index, _ = self._index(rows)
        update_rows(self.linker, self.rows, index, numbers.cpu().numpy(), cells, back)

    def clear(self) -> None:
        """Drops all addresses, which frees the whole overflow table."""
        self.linker.clear()

    def prepare(self, slots: int) -> None:
        """Allocates the first slots of a cleared overflow table, to be filled from a dump."""
        self.side.prepare(slots)

    def resume(
        self,
        positions: NDArray[np.int64],
        numbers: NDArray[np.int64],
        away: NDArray[np.int32],
        slots: NDArray[np.integer[Any]],
        owners: NDArray[np.int64],
    ) -> None:
        """Restores addresses after rows and slots were filled from a dump; call `expect` too."""
        # positions and numbers are -1 for rows that are left out; away [n]: above 0 the next
        # observation is so many rows further on in the dump, below 0 in its slot -1 - value
        self.linker.resume(positions, numbers, away, slots, self.side.regroup(owners))

    def expect(self, *, misses: bool, reach: int) -> None:
        """Extends `misses` and `reach` by those of other writers."""
        self.addresses.misses |= misses
        self.addresses.reach = max(self.addresses.reach, reach)

    @property
    def successor(self) -> NDArray[np.int32]:
        """The distance to each row's next observation; see `successor_of`."""
        return self.successor_of(slice(None))

    def successor_of(self, place: slice) -> NDArray[np.int32]:
        """The distance to the next observation of some rows; ~slot for a slot, 0 for none."""
        return self.addresses.relative(place)

    @property
    def misses(self) -> bool:
        """Whether rows without a next observation were written."""
        return self.addresses.misses

    @property
    def reach(self) -> int:
        """The largest number of steps between a row and its next observation so far."""
        return self.addresses.reach

    def explain(self, live: int) -> dict[str, float]:
        """Bytes of a row, use of the overflow table, and the share of linked rows."""
        slots = self.side.in_use()
        empty = int((self.addresses.values == 0).sum()) if self.misses else 0
        # positions never written have address 0 too
        missing = max(0, empty - (self._count - live))
        return {
            "row_bytes": self.layout.stored.nbytes + self.layout.apart * self.links.itemsize,
            "plain_row_bytes": self.schema.nbytes,
            "side_slots": slots,
            "side_bytes": self.side.nbytes,
            # rows that are being written own slots already
            "linked_share": max(0, live - slots - missing) / live if live else 1.0,
        }

    def plan(self, keys: Sequence[NestedKey] | None) -> GatherPlan:
        """The layout of a read of some leaves, or of all."""
        chosen = None if keys is None else tuple(keys)
        if chosen not in self._plans:
            if chosen == ():
                raise ValueError("keys is empty: name at least one leaf, or leave keys out.")
            self._plans[chosen] = GatherPlan(self.layout, chosen)
        return self._plans[chosen]

    def _index(self, rows: RowIndex) -> tuple[torch.Tensor, torch.Size]:
        index, shape = select(rows, self._count)
        if isinstance(index, torch.Tensor):
            return index, shape
        if isinstance(index, int):
            index = slice(index, index + 1, 1)
        return torch.arange(index.start, index.stop, index.step, device=self.device), shape

    def _gathered(
        self, plan: GatherPlan, index: torch.Tensor, given: NDArray[np.int64] | None
    ) -> SuccessorRows:
        if not self._on_host:
            return self.reader.on_device(plan, index)
        try:
            # numpy would count a row below 0 from the end
            # one reduction: the sign bit is set if any position is negative
            if np.bitwise_or.reduce(index.numpy()) < 0:
                raise IndexError
            return self.reader.on_cpu(plan, index, given)
        except IndexError:
            require_inside(index, self._count)
            raise

    def _finish(
        self,
        plan: GatherPlan,
        gathered: SuccessorRows,
        shape: torch.Size,
        contiguous: bool,
    ) -> TensorDict:
        packed, arrays, addresses = gathered
        if len(shape) != 1:
            arrays = [array.view(shape + array.shape[1:]) for array in arrays]
        if isinstance(packed, tuple):
            words, *more = (part.reshape(*shape, part.shape[1]) for part in packed)
            found = plan.unpack[True, contiguous](words, arrays, shape, *more)
        else:
            packed = packed.view(shape + packed.shape[1:])
            found = plan.unpack[False, contiguous](packed, arrays, shape)
        if plan.marks or (plan.observes and self.misses):
            # address 0: no row and no slot holds the next observation
            missing = (as_tensor(addresses) == 0).view(shape)
            stored = found.get(NEXT_MISSING) if self.layout.has_mark else None
            found.set(NEXT_MISSING, missing if stored is None else missing | stored)
        return found


def warn_of_few_links(store: LosslessRows, live: int) -> None:
    """Warns if lossless rows save little memory."""
    share = store.explain(live)["linked_share"]
    if share < FEW_LINKS:
        warnings.warn(
            f"only {share:.0%} of {live} rows name the row that holds their next observation, so "
            "lossless=True saves little: do rows have ids and steps, do next observations equal "
            "the observations of the rows after them, and are trajectories longer than a few "
            "steps? buffer.explain() says what marks them.",
            stacklevel=2,
        )
