"""Lossless rows whose observations are single numbers, for tests that write them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rl_replay.lossless.rows import LosslessRows
from rl_replay.testing.lossless_ring import ID, STEP
from rl_slabs import RowSchema


def plain_batch(
    observation: torch.Tensor,
    following: torch.Tensor | None,
    ids: Sequence[int],
    steps: Sequence[int],
    extra: Sequence[tuple[Any, torch.Tensor]] = (),
) -> TensorDict:
    """A batch of steps with these observations and, unless there are none, next observations."""
    count = len(observation)
    found = TensorDict({"observation": observation, "next": {}}, batch_size=[count])
    if following is not None:
        found["next", "observation"] = following
    found["next", "reward"] = torch.zeros(count, 1, device="cpu")
    found[ID], found[STEP] = torch.tensor(ids, device="cpu"), torch.tensor(steps, device="cpu")
    for key, value in extra:
        found[key] = value
    return found


def store(batch: TensorDict, capacity: int, keys: Any = None, **options: Any) -> LosslessRows:
    """Empty rows for such batches."""
    return LosslessRows.zeros(RowSchema.from_tensordict(batch), capacity, keys=keys, **options)


def put(rows: LosslessRows, start: int, cells: TensorDict, back: Sequence[int]) -> None:
    """Writes a batch from a row id on, and links what continues in it."""
    numbers = range(start, start + len(cells))
    positions = torch.arange(start, start + len(cells), device="cpu") % len(rows)
    rows.write(positions, numbers, cells, np.array(back))
    rows.linker.link_predecessors(numbers)


def filled(capacity: int = 9) -> LosslessRows:
    """Rows that hold six steps of one trajectory, which observe 0 to 6."""
    batch = plain_batch(
        torch.arange(6.0, device="cpu"), torch.arange(1.0, 7, device="cpu"), [5] * 6, list(range(6))
    )
    rows = store(batch, capacity)
    put(rows, 0, batch, [0, 1, 1, 1, 1, 1])
    return rows


def update(rows: LosslessRows, positions: Sequence[int], cells: Any, back: Any = None) -> None:
    """Updates leaves of rows in place, of which none continues another unless `back` says so."""
    index = torch.tensor(positions, device="cpu")
    back = np.zeros(len(index)) if back is None else back
    rows.update(index, index, TensorDict(cells, batch_size=[len(index)]), np.array(back))


def missing(rows: LosslessRows, count: int) -> tuple[list[bool], torch.Tensor]:
    """Which of the first rows have no next observation, and what they read as."""
    found = rows.read(slice(0, count))
    return found["collector", "next_missing"].tolist(), found["next", "observation"]


def observations(rows: LosslessRows, count: int = 6) -> tuple[list[float], list[float]]:
    """The observations of the first rows, and their next ones."""
    found = rows.read(slice(0, count))
    return found["observation"].tolist(), found["next", "observation"].tolist()
