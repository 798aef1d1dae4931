"""Reads concurrent with writers of other processes; rows that were overwritten are drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_replay.lossless.rows import ALL_VALID, LosslessRows
from rl_replay.samplers.slice_layout import Slices
from rl_replay.samplers.slices import TrajectorySampler
from rl_replay.shared.files import MISSES
from rl_replay.shared.memory import SharedMemory
from rl_replay.storages.session import Chosen, RowsAfter, RowSampler, StoredSample
from rl_replay.storages.table import RowTable
from rl_tensordict import CPU, NestedKey
from rl_tensordict.types import Ints

_ROUNDS = 200
_TRUSTING_ROUNDS = 8
"""So often slices are drawn from the shared index before this process makes one of its own."""


@dataclass(frozen=True, slots=True)
class ConcurrentReader:
    """Copies rows that other processes may be overwriting, and says which copies are whole."""

    memory: SharedMemory
    table: RowTable

    def draw(self, storage: Any, sampler: RowSampler, size: int, chosen: Chosen) -> StoredSample:
        """Copies the leaves of sampled rows, and redraws rows overwritten meanwhile."""
        slices = chosen[1].get("slices")
        if slices is not None and isinstance(sampler, TrajectorySampler) and sampler.reads_markers:
            return self._draw_slices(storage, sampler, size, chosen)
        return self._draw_rows(storage, sampler, chosen)

    def read_standing(
        self,
        numbers: torch.Tensor,
        keys: list[NestedKey] | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies rows of any shape, all leaves unless some are named; and which are whole."""
        places = self.memory.ring.positions(numbers) if positions is None else positions
        epoch = self.memory.epoch
        cells, valid = self.copy(numbers, places, keys)
        return cells, self._whole(numbers, valid, epoch)

    def read_linked(
        self, numbers: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, NDArray[np.int32]]:
        """Copies rows `[n]`; which are whole, and for these the distance to the predecessor."""
        # the epoch is read before the rows: a change of it meanwhile voids the copy
        positions, epoch = self.memory.ring.positions(numbers), self.memory.epoch
        cells, valid = self.copy(numbers, positions, None)
        back = self.memory.back[positions.numpy()]
        return cells, self._whole(numbers, valid, epoch), back

    def read_live(
        self, positions: torch.Tensor | int, *, some: bool
    ) -> tuple[torch.Tensor | int, TensorDict]:
        """Copies the rows at some positions, each complete."""
        wanted = torch.as_tensor(positions, device=CPU)
        flat = wanted.reshape(-1)
        for _ in range(_ROUNDS):
            numbers = self.memory.ring.numbers_at(flat)
            cells, good = self.read_standing(numbers.clamp(min=0))
            good = good & (numbers >= 0)
            if good.all():
                found = cells[0] if isinstance(positions, int) else cells.reshape(wanted.shape)
                return positions, found
            if some and wanted.ndim == 1:
                return wanted[good], cells[good]
        raise RuntimeError(
            f"{int((~good).sum())} of these {len(good)} rows are being overwritten: their writer "
            "works on them, or was stopped there. Read others, or buffer[:] for all that stand."
        )

    def after(self, numbers: Ints, k: int) -> RowsAfter:
        """The rows k steps later that the index names and the links lead to."""
        if k < 0:
            return self._before(numbers, -k)
        self.table.layout.require_columns()
        found, there = self.memory.trajectories().after(numbers, k)
        found = np.where(there, found, numbers)
        begun, proved = self._before(found, k)
        # rows are older than their successors: while the first one is valid, all are
        return found, there & proved & (begun == numbers)

    def _before(self, numbers: Ints, k: int) -> RowsAfter:
        """The rows k links back, and whether they are live after all links were read."""
        ring, back = self.memory.ring, self.memory.back
        there = ring.is_live(torch.from_numpy(numbers)).numpy()
        found = np.where(there, numbers, ring.window().first[0])
        for _ in range(k):
            distance = back[ring.positions(torch.from_numpy(found)).numpy()]
            there = there & (distance > 0)
            found = np.where(there, found - distance, found)
        is_live_now = ring.is_live(torch.from_numpy(found)).numpy()
        return np.where(is_live_now, found, numbers), there & is_live_now

    def copy(
        self, numbers: torch.Tensor, positions: torch.Tensor, keys: list[NestedKey] | None
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies rows, and says which no writer changed meanwhile, if their ids are still live."""
        store, memory = self.table.store, self.memory
        if not isinstance(store, LosslessRows):
            quick = keys is None and positions.ndim == 1
            cells = store.gather(positions) if quick else store.read(positions, keys=keys)
            return cells, ALL_VALID
        if memory.board[MISSES]:
            memory.inform(store)
        unchanged = partial(memory.ring.unchanged_since, memory.ring.version_snapshot())
        return store.read_concurrent(positions, numbers, keys=keys, unchanged=unchanged)

    def _whole(self, numbers: torch.Tensor, valid: torch.Tensor, epoch: int) -> torch.Tensor:
        """Which rows are complete: checked after the copy, as rows live now were live then."""
        good = self.memory.ring.is_live(numbers)
        if self.memory.epoch != epoch:  # others were loaded, which may have the same numbers
            return torch.zeros_like(good)
        return good if valid is ALL_VALID else valid & good

    def _draw_rows(self, storage: Any, sampler: RowSampler, chosen: Chosen) -> StoredSample:
        ring = self.memory.ring
        numbers, info = chosen
        positions, redrawn = ring.positions(numbers), 0
        cells, good = self.read_standing(numbers, positions=positions)
        for _ in range(_ROUNDS):
            if good.all():
                if redrawn:
                    positions = ring.positions(numbers)
                return StoredSample(cells, numbers, positions, info, redrawn)
            if not redrawn:
                numbers = numbers.clone()
            bad = torch.from_numpy(np.flatnonzero(~good.numpy()))
            fresh, known = sampler.sample(storage, len(bad))
            info = _with_others(info, bad, known)
            # a sampler without replacement may return fewer at the end of a pass
            bad, redrawn = bad[: len(fresh)], redrawn + len(fresh)
            others, whole = self.read_standing(fresh)
            cells[bad], numbers[bad], good[bad] = others, fresh, whole
        raise self._too_fast()

    def _draw_slices(
        self, storage: Any, sampler: TrajectorySampler, size: int, chosen: Chosen
    ) -> StoredSample:
        _, length = sampler.shape.of(size)
        numbers, info = chosen
        found = self._proved(numbers, info["slices"])
        parts, wanted, redrawn = [found], len(info["slices"]) - len(found[2]), 0
        for turn in range(_ROUNDS):
            if not wanted:
                break
            redrawn += wanted
            # the shared index may be torn for long, where its writer was stopped
            if turn < _TRUSTING_ROUNDS:
                drawn = self._drawn(storage, sampler, wanted, length)
            else:
                with self.memory.own_index():
                    drawn = sampler.sample_slices(storage, wanted, length)
            found = self._proved(torch.from_numpy(drawn[0]), drawn[1])
            # a sampler without replacement may have come to its end: then a batch is shorter
            wanted = len(drawn[1]) - len(found[2])
            parts.append(found)
        else:
            raise self._too_fast()
        cells, numbers, slices = parts[0]
        if len(parts) > 1:
            for part in parts[1:]:
                slices = slices.and_then(part[2])
            cells = torch.cat([part[0] for part in parts])
            numbers = torch.cat([part[1] for part in parts])
        positions = self.memory.ring.positions(numbers)
        return StoredSample(cells, numbers, positions, info | {"slices": slices}, redrawn)

    def _drawn(
        self, storage: Any, sampler: TrajectorySampler, count: int, length: int
    ) -> tuple[Ints, Slices]:
        try:
            return sampler.sample_slices(storage, count, length)
        except ValueError:
            with self.memory.own_index():
                return sampler.sample_slices(storage, count, length)

    def _proved(
        self, numbers: torch.Tensor, slices: Slices
    ) -> tuple[TensorDict, torch.Tensor, Slices]:
        """The slices whose rows are complete and each continue the row before."""
        cells, good, back = self.read_linked(numbers)
        proved = slices.proved(numbers.numpy(), back)
        # [slices], complete only if each of its rows is
        proved &= np.logical_and.reduceat(good.numpy(), slices.starts)
        if proved.all():
            return cells, numbers, slices
        rows = torch.from_numpy(slices.rows_of(proved))
        return cells[rows], numbers[rows], slices.only(proved)

    def _too_fast(self) -> RuntimeError:
        ring = self.memory.ring
        return RuntimeError(
            f"rows are overwritten faster than they can be read: {ring.capacity} rows in "
            f"{ring.lanes} lanes are too few for these writers."
        )


def _with_others(info: dict[str, Any], rows: torch.Tensor, known: dict[str, Any]) -> dict[str, Any]:
    """A sampler's info with the entries of replaced rows."""
    found = dict(info)
    for key, value in known.items():
        former = found.get(key)
        if isinstance(value, torch.Tensor) and isinstance(former, torch.Tensor) and value.ndim:
            found[key] = former.index_copy(0, rows[: len(value)], value)
    return found
