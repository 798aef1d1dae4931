"""A state machine of hypothesis: the trajectories of a storage against the markers of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_replay.samplers import SliceSampler
from rl_replay.samplers.slice_layout import mark_slices
from rl_replay.storages import LazyTensorStorage, TensorStorage

WriterColumn = tuple[object, int]  # who writes, and the column of its rows


class StorageTrajectoryMachine(RuleBasedStateMachine):
    """Rows of several producers, padding and stored samples, in batches of any shape.

    After every call the trajectories of the storage are the ones that its markers tell.
    Derive from it and name your storages; `TestCase` of the derived class is what pytest runs. Rows
    have the keys of `rl_layout.testing.trajectories`.

    Attributes:
        storages: By name a function of a capacity and a number of dimensions, 1 or 2, that makes a
            storage which loads the state of another one.
        storage: The storage.
        columns: How many columns its rows have.

    Raises:
        AssertionError: The storage tells other trajectories than the markers.

    Example:
        >>> class Columns(StorageTrajectoryMachine):
        ...     storages = {"mine": lambda capacity, ndim: LazyTensorStorage(capacity, ndim=ndim)}
        >>> Columns.TestCase.__name__
        'Columns.TestCase'
    """

    storages: ClassVar[Mapping[str, Callable[[int, int], TensorStorage]]] = {
        "memory": lambda capacity, ndim: LazyTensorStorage(capacity, ndim=ndim)
    }

    @initialize(capacity=st.integers(16, 40), ndim=st.integers(1, 2), data=st.data())
    def begin(self, capacity: int, ndim: int, data: st.DataObject) -> None:
        """Begins with an empty storage."""
        make = self.storages[data.draw(st.sampled_from(sorted(self.storages)))]
        self._make = partial(make, capacity, ndim)
        self.storage, self.columns = self._make(), ndim
        self._generator = torch.Generator().manual_seed(capacity)
        self._last_id = 0
        self._producers: dict[WriterColumn, tuple[TensorDictBase, int]] = {}

    @rule(producer=st.integers(0, 3), count=st.integers(1, 8))
    def extend_by_a_run(self, producer: int, count: int) -> None:
        """Writes the next rows of one producer."""
        self._extend([self._rows((producer, column), count) for column in range(self.columns)])

    @rule(producers=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def extend_by_rows_in_turns(self, producers: list[int]) -> None:
        """Writes rows of several producers in turns."""
        self._extend(
            [
                torch.cat([self._rows((producer, column), 1) for producer in producers])
                for column in range(self.columns)
            ]
        )

    @rule(steps=st.integers(1, 4))
    def extend_by_environments(self, steps: int) -> None:
        """Writes a batch ``[2, T]`` of two environments into flat rows."""
        if self.columns == 1:
            rows = [self._rows(("side", env), steps) for env in range(2)]
            self.storage.extend(torch.stack(rows))

    @rule(count=st.integers(2, 8))
    def extend_padded(self, count: int) -> None:
        """Writes rows of which the last one is padding."""
        rows = [self._rows(("padded", column), count) for column in range(self.columns)]
        for part in rows:
            part[keys.MASK][-1] = False
            part[keys.TRAJ_IDS][-1] = keys.PADDING_ID
        self._extend(rows)

    @rule(num_slices=st.integers(1, 3))
    def store_a_sample_again(self, num_slices: int) -> None:
        """Writes a sample of slices, whose rows have the ids of stored ones."""
        if self.columns == 1 and len(self.storage) and self.storage.trajectories().steps:
            sampler = SliceSampler(num_slices=num_slices, slice_len=2)
            sampler.generator = self._generator
            numbers, info = sampler.sample(self.storage, 2 * num_slices)
            sample = self.storage.read(self.storage.ring.positions(numbers))
            mark_slices(sample, info["slices"])
            self.storage.extend(sample.exclude(keys.SLICE_IDS))

    @rule()
    def empty(self) -> None:
        """Empties the storage."""
        self.storage.empty()

    @rule()
    def load(self) -> None:
        """Continues with another storage that has loaded the state."""
        if len(self.storage):
            other = self._make()
            other.load_state_dict(self.storage.state_dict())
            self.storage = other

    @invariant()
    def tells_the_trajectories_of_the_markers(self) -> None:
        """The trajectories are those of the markers, row by row."""
        if not len(self.storage):
            return
        index, window = self.storage.trajectories(), self.storage.ring.window()
        numbers = window.numbers(torch.arange(len(window), device="cpu"))
        rows = self.storage.read(self.storage.ring.positions(numbers))
        slots = index.slots()
        lengths = index.lengths_of(slots)
        found = np.split(index.rows(slots, np.zeros_like(slots), lengths), lengths.cumsum())[:-1]
        assert sorted(map(tuple, found)) == _trajectories_of(rows, window.first[0])

    def _extend(self, columns: list[TensorDictBase]) -> None:
        self.storage.extend(columns[0] if self.columns == 1 else torch.stack(columns))

    def _rows(self, producer: WriterColumn, count: int) -> TensorDictBase:
        """The next rows of a producer, whose trajectories continue from batch to batch."""
        batch, place = self._producers.get(producer, (TensorDict({}, [0]), 0))
        if place + count > len(batch):
            lengths = [1 + (self._last_id * 7 + i * 3) % 6 for i in range(12)]
            kinds = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT] * 4
            batch, place = trajectories(lengths, kinds, first_id=self._last_id), 0
            self._last_id += 20
        self._producers[producer] = (batch, place + count)
        rows: TensorDictBase = batch[place : place + count].clone()
        rows[keys.MASK] = torch.ones(count, dtype=torch.bool, device="cpu")
        rows.names = [None]
        return rows


def _trajectories_of(rows: TensorDictBase, first: int) -> list[tuple[int, ...]]:
    """Row numbers by trajectory: each row continues the newest one that the markers allow."""
    ids, steps = rows[keys.TRAJ_IDS].tolist(), rows[keys.TRAJ_STEP].tolist()
    init, done = (rows[key].flatten().tolist() for key in (keys.IS_INIT, keys.NEXT_DONE))
    real = rows[keys.MASK].tolist()
    # the newest row of each id and step that may have a successor, and the rows up to each
    waiting: dict[tuple[int, int], int] = {}
    chains: dict[int, list[int]] = {}
    for place, number in enumerate(range(first, first + len(rows))):
        if not real[place]:
            continue
        before = None
        if not init[place]:
            before = waiting.pop((ids[place], steps[place] - 1), None)
        chains[number] = [*(chains.pop(before) if before is not None else ()), number]
        if not done[place]:
            waiting[ids[place], steps[place]] = number
    return sorted(map(tuple, chains.values()))
