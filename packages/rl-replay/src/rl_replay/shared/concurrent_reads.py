"""Reads concurrent with writers of other processes; rows that were overwritten are drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_replay.samplers.slice_layout import Slices
from rl_replay.samplers.slices import TrajectorySampler
from rl_replay.storages.marked import RowsAfter
from rl_replay.storages.storage import RowSampler, StoredSample
from rl_replay.storages.tensor import TensorStorage

_ROUNDS = 200
_TRUSTING_ROUNDS = 8
"""So often slices are drawn from the shared index before this process makes one of its own."""


def choose(
    storage: TensorStorage, sampler: RowSampler, size: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Samples row ids; from the links if the shared index has nothing."""
    try:
        return sampler.sample(storage, size)
    except ValueError as error:
        storage.sync()
        if not len(storage.ring.window()):
            error.add_note("Rows of a shared buffer count once they are published.")
        if not isinstance(sampler, TrajectorySampler) or not len(storage.ring.window()):
            raise
    with storage.own_index():
        return sampler.sample(storage, size)


def gather(
    storage: TensorStorage,
    sampler: RowSampler,
    size: int,
    chosen: tuple[torch.Tensor, dict[str, Any]],
) -> StoredSample:
    """Copies sampled rows, and redraws rows overwritten meanwhile."""
    numbers, info = chosen
    slices = info.get("slices")
    if slices is not None and isinstance(sampler, TrajectorySampler) and sampler.reads_markers:
        return _slices(storage, sampler, size, numbers, info)
    return _rows(storage, sampler, numbers, info)


def _rows(
    storage: TensorStorage, sampler: RowSampler, numbers: torch.Tensor, info: dict[str, Any]
) -> StoredSample:
    positions, redrawn = storage.ring.positions(numbers), 0
    cells, good = storage.read_standing(numbers, positions=positions)
    for _ in range(_ROUNDS):
        if good.all():
            if redrawn:
                positions = storage.ring.positions(numbers)
            return StoredSample(cells, numbers, positions, info, redrawn)
        if not redrawn:
            numbers = numbers.clone()
        bad = torch.from_numpy(np.flatnonzero(~good.numpy()))
        fresh, known = sampler.sample(storage, len(bad))
        info = _with_others(info, bad, known)
        # a sampler without replacement may return fewer at the end of a pass
        bad, redrawn = bad[: len(fresh)], redrawn + len(fresh)
        others, whole = storage.read_standing(fresh)
        cells[bad], numbers[bad], good[bad] = others, fresh, whole
    raise _too_fast(storage)


def _with_others(info: dict[str, Any], rows: torch.Tensor, known: dict[str, Any]) -> dict[str, Any]:
    """A sampler's info with the entries of replaced rows."""
    found = dict(info)
    for key, value in known.items():
        former = found.get(key)
        if isinstance(value, torch.Tensor) and isinstance(former, torch.Tensor) and value.ndim:
            found[key] = former.index_copy(0, rows[: len(value)], value)
    return found


def _slices(
    storage: TensorStorage,
    sampler: TrajectorySampler,
    size: int,
    numbers: torch.Tensor,
    info: dict[str, Any],
) -> StoredSample:
    _, length = sampler.shape.of(size)
    found = _proved(storage, numbers, info["slices"])
    parts, wanted, redrawn = [found], len(info["slices"]) - len(found[2]), 0
    for turn in range(_ROUNDS):
        if not wanted:
            break
        redrawn += wanted
        # the shared index may be torn for long, where its writer was stopped
        if turn < _TRUSTING_ROUNDS:
            drawn = _drawn(storage, sampler, wanted, length)
        else:
            with storage.own_index():
                drawn = sampler.sample_slices(storage, wanted, length)
        found = _proved(storage, torch.from_numpy(drawn[0]), drawn[1])
        # a sampler without replacement may have come to its end: then a batch is shorter
        wanted = len(drawn[1]) - len(found[2])
        parts.append(found)
    else:
        raise _too_fast(storage)
    cells, numbers, slices = parts[0]
    if len(parts) > 1:
        for part in parts[1:]:
            slices = slices.and_then(part[2])
        cells = torch.cat([part[0] for part in parts])
        numbers = torch.cat([part[1] for part in parts])
    positions = storage.ring.positions(numbers)
    return StoredSample(cells, numbers, positions, info | {"slices": slices}, redrawn)


def _drawn(
    storage: TensorStorage, sampler: TrajectorySampler, count: int, length: int
) -> tuple[NDArray[np.int64], Slices]:
    try:
        return sampler.sample_slices(storage, count, length)
    except ValueError:
        with storage.own_index():
            return sampler.sample_slices(storage, count, length)


def _proved(
    storage: TensorStorage, numbers: torch.Tensor, slices: Slices
) -> tuple[TensorDict, torch.Tensor, Slices]:
    """The slices whose rows are complete and each continue the row before."""
    cells, good, back = storage.read_linked(numbers)
    proved = slices.proved(numbers.numpy(), back)
    # [slices], complete only if each of its rows is
    proved &= np.logical_and.reduceat(good.numpy(), slices.starts)
    if proved.all():
        return cells, numbers, slices
    rows = torch.from_numpy(slices.rows_of(proved))
    return cells[rows], numbers[rows], slices.only(proved)


def read_rows(
    storage: TensorStorage, positions: torch.Tensor | int, *, some: bool
) -> tuple[torch.Tensor | int, Any]:
    """Copies the rows at some positions, each complete."""
    wanted = torch.as_tensor(positions)
    flat = wanted.reshape(-1)
    for _ in range(_ROUNDS):
        numbers = storage.ring.numbers_at(flat)
        cells, good = storage.read_standing(numbers.clamp(min=0))
        good = good & (numbers >= 0)
        if good.all():
            found = cells[0] if isinstance(positions, int) else cells.reshape(wanted.shape)
            return positions, storage.put_together(found)
        if some and wanted.ndim == 1:
            return wanted[good], storage.put_together(cells[good])
    raise RuntimeError(
        f"{int((~good).sum())} of these {len(good)} rows are being overwritten: their writer works "
        "on them, or was stopped there. Read others, or buffer[:] for all that stand."
    )


def rows_after(storage: TensorStorage, numbers: NDArray[np.int64], k: int) -> RowsAfter:
    """The rows k steps later that the index names and the links lead to."""
    if k < 0:
        return _rows_before(storage, numbers, -k)
    found, there = storage.trajectories().after(numbers, k)
    found = np.where(there, found, numbers)
    begun, proved = _rows_before(storage, found, k)
    # rows are older than those that continue them: the first one is valid as long as any
    return found, there & proved & (begun == numbers)


def _rows_before(storage: TensorStorage, numbers: NDArray[np.int64], k: int) -> RowsAfter:
    """The rows k links back, and whether they are live after all links were read."""
    ring, back = storage.ring, storage.back
    there = ring.is_live(torch.from_numpy(numbers)).numpy()
    found = np.where(there, numbers, ring.window().first[0])
    for _ in range(k):
        distance = back[ring.positions(torch.from_numpy(found)).numpy()]
        there = there & (distance > 0)
        found = np.where(there, found - distance, found)
    stands = ring.is_live(torch.from_numpy(found)).numpy()
    return np.where(stands, found, numbers), there & stands


def _too_fast(storage: TensorStorage) -> RuntimeError:
    return RuntimeError(
        f"rows are overwritten faster than they can be read: {storage.max_size} rows in "
        f"{len(storage.ring.window().first)} lanes are too few for these writers."
    )
