"""State machines of hypothesis: a buffer against plain lists; they need ``rl-replay[testing]``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.buffer.tensordict_buffer import TensorDictReplayBuffer
from rl_replay.samplers import SliceSampler
from rl_replay.storages import LazyTensorStorage, Storage, TensorStorage
from rl_replay.testing.list_model import ListModel

WrittenStep = tuple[int, int]  # trajectory and step, which the observation holds too


class BufferMachine(RuleBasedStateMachine):
    """Adds, extends, replaces, empties and samples in any order, against a `ListModel`.

    Derive from it and name your storages; `TestCase` of the derived class is what pytest runs. Rows
    have the keys of `rl_layout.testing.trajectories`.

    Attributes:
        storages: By name a function that makes a storage of so many rows.
        buffer: The buffer.
        model: What it holds.
        sources: Two runs of steps that rows are taken from, one after the other.
        taken: How many rows were taken from each.

    Raises:
        AssertionError: The buffer holds other rows than the model.

    Example:
        >>> from rl_replay import ListStorage
        >>> class Lists(BufferMachine):
        ...     storages = {"list": ListStorage}
        >>> Lists.TestCase.__name__
        'Lists.TestCase'
    """

    storages: ClassVar[Mapping[str, Callable[[int], Storage]]] = {"memory": LazyTensorStorage}

    @initialize(capacity=st.integers(1, 25), data=st.data())
    def begin(self, capacity: int, data: st.DataObject) -> None:
        """Begins with an empty buffer."""
        name = data.draw(st.sampled_from(sorted(self.storages)))
        self.buffer = ReplayBuffer(storage=self.storages[name](capacity))
        self.model = ListModel(capacity)
        lengths = [3, 1, 5, 2, 8, 4] * 5
        ends = [EndKind(i % 3) for i in range(len(lengths))]
        self.sources = [trajectories(lengths, ends, first_id=100 * i) for i in range(2)]
        self.taken = [0, 0]

    @rule(source=st.integers(0, 1), count=st.integers(1, 12))
    def extend(self, source: int, count: int) -> None:
        """Writes the next steps of a run."""
        rows = self._take(source, count)
        if len(rows):
            written = self.buffer.extend(rows).tolist()
            assert written == self._note(rows), "extend returns the positions of its rows"

    @rule(source=st.integers(0, 1))
    def add(self, source: int) -> None:
        """Writes the next step of a run."""
        rows = self._take(source, 1)
        if len(rows):
            assert [self.buffer.add(rows[0])] == self._note(rows), "add returns the position"

    @rule(count=st.integers(26, 40))
    def extend_by_too_many(self, count: int) -> None:
        """More rows than the capacity are refused, and change nothing."""
        try:
            self.buffer.extend(self.sources[0][:count])
        except ValueError:
            return
        raise AssertionError(f"{count} rows were written to a buffer of {self.model.capacity}")

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        """Writes a row in place; of a tensordict only some leaves."""
        if not len(self.model):
            return
        position = data.draw(st.sampled_from(sorted(self.model.rows)))
        row = self.sources[1][data.draw(st.integers(0, 60))]
        if not self._holds_objects:
            part = row.select("observation", "action", ("next", "reward"))
            part["next", "observation"] = row["next", "observation"] + 7
            row = self.model.rows[position].clone().update(part)
            self.buffer[position] = part
        else:
            self.buffer[position] = row
        self.model.replace(position, row.clone())

    @rule()
    def empty(self) -> None:
        """Drops every row."""
        self.buffer.empty()
        self.model.empty()

    @invariant()
    def holds_the_rows_of_the_model(self) -> None:
        """The buffer and its samples hold the rows of the model, at their positions."""
        if not hasattr(self, "model"):
            return
        model = self.model
        assert len(self.buffer) == len(model), "len() is the number of rows"
        if not len(model):
            return
        rows = self.buffer[:]
        rows = torch.stack(rows) if isinstance(rows, list) else rows
        assert (rows == torch.stack(model.contents())).all(), "it holds the rows"
        sample, info = self.buffer.sample(4, return_info=True)
        if self._holds_objects:
            assert set(info["index"].tolist()) <= model.rows.keys(), "a sample holds live rows"
            return
        for row, place in zip(sample.unbind(0), info["index"].tolist(), strict=True):
            stored = row.exclude("index", keys.ROW)
            assert (stored == model.rows[place]).all(), "a sample holds stored rows"
            assert row[keys.ROW] == model.row_ids[place], "a sample names the row ids of its rows"

    @property
    def _holds_objects(self) -> bool:
        return not isinstance(self.buffer.storage, TensorStorage)

    def _take(self, source: int, count: int) -> TensorDict:
        place = self.taken[source] % 90
        self.taken[source] = place + count
        return self.sources[source][place : place + min(count, self.model.capacity)]

    def _note(self, rows: TensorDict) -> list[int]:
        return self.model.extend([row.clone() for row in rows.unbind(0)])


class SharedBufferMachine(RuleBasedStateMachine):
    """Two or three lanes, each written through a handle of its own; all handles read all.

    Derive from it and name your storages; `TestCase` of the derived class is what pytest runs.

    Attributes:
        storages: By name a function that makes a storage: rows, lanes, and whether it is lossless.
        buffers: A handle for each lane.
        rows: For each lane the trajectory and step of each of its rows, the oldest first.

    Raises:
        AssertionError: A handle reads other rows than were written.

    Example:
        >>> SharedBufferMachine.TestCase.__name__
        'SharedBufferMachine.TestCase'
    """

    storages: ClassVar[Mapping[str, Callable[[int, int, bool], Storage]]] = {
        "memory": lambda size, lanes, once: LazyTensorStorage(size, lanes=lanes, lossless=once)
    }

    @initialize(
        each=st.integers(3, 9), lanes=st.integers(2, 3), lossless=st.booleans(), data=st.data()
    )
    def begin(self, each: int, lanes: int, lossless: bool, data: st.DataObject) -> None:
        """Begins with an empty buffer and a handle for each lane."""
        name = data.draw(st.sampled_from(sorted(self.storages)))
        storage = self.storages[name](each * lanes, lanes, lossless)
        sampler = SliceSampler(slice_len=3, num_slices=4)
        first = TensorDictReplayBuffer(storage=storage, sampler=sampler, shared=True, batch_size=12)
        self.buffers = [first, *(_handle(first) for _ in range(lanes - 1))]
        self.each = each
        self.rows: list[list[WrittenStep]] = [[] for _ in self.buffers]
        self.unfinished: list[list[WrittenStep]] = [
            [] for _ in self.buffers
        ]  # the next step of each
        self.trajectories = self.written = 0
        self.further: list[str] = []  # leaves in addition to those of `_batch`

    @rule(data=st.data(), single=st.booleans())
    def write(self, data: st.DataObject, single: bool) -> None:
        """Writes steps through one handle."""
        self._write(data.draw(st.integers(0, len(self.buffers) - 1)), data, single=single)
        self._claim_lanes()

    @rule(data=st.data())
    def empty(self, data: st.DataObject) -> None:
        """Drops every row through one handle."""
        data.draw(st.sampled_from(self.buffers)).empty()
        self.rows = [[] for _ in self.buffers]

    @rule(data=st.data())
    def change_keys(self, data: st.DataObject) -> None:
        """Rows with other keys after `empty`: older handles are refused."""
        self.empty(data)
        self.further = [] if self.further else ["further"]
        was_written = self.written
        writer = data.draw(st.integers(0, len(self.buffers) - 1))
        self._write(writer, data, single=data.draw(st.booleans()))
        for other, buffer in enumerate(self.buffers):
            if other != writer:
                assert not was_written or _is_refused(buffer), "an old handle is refused"
                self.buffers[other] = _handle(self.buffers[writer])
        self._claim_lanes()

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        """Writes a leaf of sampled rows back."""
        if not any(self.rows):
            return
        buffer = data.draw(st.sampled_from(self.buffers))
        sample = buffer.sample()
        reward = sample.select(("next", "reward"))
        reward["next", "reward"] = sample["collector", "traj_step"][:, None] + 1.0
        assert buffer.update_rows(sample[keys.ROW], reward).all(), "all rows of a sample are live"

    @rule(data=st.data())
    def sample(self, data: st.DataObject) -> None:
        """Slices are runs of consecutive steps, with their next observations."""
        if not any(self.rows):
            return
        sample = data.draw(st.sampled_from(self.buffers)).sample()
        steps, one_step = sample["observation"].long(), torch.tensor([0, 1], device="cpu")
        same_slice = sample[keys.SLICE_IDS].diff() == 0
        assert (steps.diff(dim=0)[same_slice] == one_step).all(), "a slice is consecutive"
        live = {row for lane in self.rows for row in lane}
        assert {(a, b) for a, b in steps.tolist()} <= live, "a sample holds live rows"
        following = sample["next", "observation"].long()
        assert (following == steps + one_step).all(), "next observations are those written"

    @invariant()
    def handles_hold_the_same_rows(self) -> None:
        """Every handle holds the rows of all lanes."""
        if not hasattr(self, "buffers"):
            return
        live = sorted(row for lane in self.rows for row in lane)
        for buffer in self.buffers:
            assert len(buffer) == len(live), "len() is the number of rows of all lanes"
            assert buffer.write_count == self.written, "every write is counted"
            if live:
                found = buffer[:]["observation"].long().tolist()
                assert sorted((a, b) for a, b in found) == live, "every handle reads every row"

    @invariant()
    def trajectories_are_those_of_the_lists(self) -> None:
        """The trajectories of each lane are its runs of consecutive steps."""
        if not hasattr(self, "buffers") or not any(self.rows):
            return
        expected = []
        for lane in map(set, self.rows):
            for trajectory, step in lane:
                if (trajectory, step - 1) not in lane:
                    length = 1
                    while (trajectory, step + length) in lane:
                        length += 1
                    expected.append(length)
        storage: Any = self.buffers[-1].storage
        with storage.session.memory.own_index():  # the shared one may have dropped rows
            lengths = storage.trajectories().lengths().tolist()
        assert sorted(lengths) == sorted(expected), "trajectories are runs of steps"

    def _claim_lanes(self) -> None:
        """Lets every handle hold a lane: one that finds others free would write those too."""
        for buffer in self.buffers:
            buffer.storage.sync()
            buffer.storage.ring.claim()  # type: ignore[attr-defined]  # the ring of a shared one

    def _write(self, lane: int, data: st.DataObject, *, single: bool) -> None:
        rows, ends = [], []
        unfinished = self.unfinished[lane]
        for _ in range(1 if single else data.draw(st.integers(1, self.each))):
            which = data.draw(st.integers(0, min(len(unfinished), 2)))
            if which == len(unfinished):
                self.trajectories += 1
                unfinished.append((self.trajectories, 0))
            trajectory, step = unfinished[which]
            rows.append((trajectory, step))
            ends.append(data.draw(st.booleans()))
            if ends[-1]:
                del unfinished[which]
            else:
                unfinished[which] = (trajectory, step + 1)
        buffer, cells = self.buffers[lane], _batch(rows, ends)
        for key in self.further:
            cells[key] = cells["observation"]
        if single:
            buffer.add(cells[0])
        else:
            buffer.extend(cells)
        self.rows[lane] = (self.rows[lane] + rows)[-self.each :]
        self.written += len(rows)


def _handle(buffer: TensorDictReplayBuffer) -> TensorDictReplayBuffer:
    """A buffer as another process gets it."""
    handle: TensorDictReplayBuffer = pickle.loads(pickle.dumps(buffer))
    return handle


def _is_refused(buffer: TensorDictReplayBuffer) -> bool:
    try:
        len(buffer)
    except RuntimeError:
        return True
    return False


def _batch(rows: list[WrittenStep], ends: list[bool]) -> TensorDict:
    """Steps of any trajectories in any order; one that ends its trajectory is terminated."""
    parts = [
        trajectories(
            [1],
            EndKind.TERMINATED if end else EndKind.CUT,
            first_id=trajectory,
            first_step=step,
        )
        for (trajectory, step), end in zip(rows, ends, strict=True)
    ]
    batch: TensorDict = torch.cat(parts)
    return batch
