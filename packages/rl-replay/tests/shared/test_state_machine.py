"""Several handles of one buffer, in any order of writes, against lists of the rows of each lane."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyMemmapStorage, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

Row = tuple[int, int]  # trajectory and step, which the observation says too


def batch(rows: list[Row], ends: list[bool]) -> torch.Tensor:
    """Rows of any trajectories in any order; the last step of one is terminated."""
    parts = [
        trajectories(
            [1], EndKind.TERMINATED if end else EndKind.CUT, first_id=name, first_step=step
        )
        for (name, step), end in zip(rows, ends, strict=True)
    ]
    return torch.cat(parts)


class Model(RuleBasedStateMachine):
    """Two or three lanes, each written through a handle of its own; all handles read all."""

    @initialize(
        each=st.integers(3, 9),
        lanes=st.integers(2, 3),
        lossless=st.booleans(),
        on_disk=st.booleans(),
    )
    def make(self, each: int, lanes: int, lossless: bool, on_disk: bool) -> None:
        kind = LazyMemmapStorage if on_disk else LazyTensorStorage
        storage = kind(each * lanes, lanes=lanes, lossless=lossless)
        sampler = SliceSampler(slice_len=3, num_slices=4)
        first = TensorDictReplayBuffer(storage=storage, sampler=sampler, shared=True, batch_size=12)
        copies = [pickle.loads(pickle.dumps(first)) for _ in range(lanes - 1)]
        self.buffers = [first, *copies]
        self.each, self.lossless = each, lossless
        self.rows: list[list[Row]] = [[] for _ in self.buffers]
        self.going: list[list[Row]] = [[] for _ in self.buffers]  # the next step of each
        self.ended: set[Row] = set()
        self.names = 0
        self.written = 0
        self.more: list[str] = []  # the leaves alongside those of `batch`

    @rule(data=st.data(), single=st.booleans())
    def write(self, data: st.DataObject, single: bool) -> None:
        self._write(data.draw(st.integers(0, len(self.buffers) - 1)), data, single=single)
        self._claim()

    def _claim(self) -> None:
        """Let every handle hold a lane: one that finds others free would use them, too."""
        for buffer in self.buffers:
            buffer.storage.sync()
            buffer.storage.ring.claim()

    def _write(self, lane: int, data: st.DataObject, *, single: bool) -> None:
        count = 1 if single else data.draw(st.integers(1, self.each))
        rows, ends = [], []
        for _ in range(count):
            going = self.going[lane]
            which = data.draw(st.integers(0, min(len(going), 2)))
            if which == len(going):
                self.names += 1
                going.append((self.names, 0))
            row = going[which]
            ends.append(data.draw(st.booleans()))
            rows.append(row)
            if ends[-1]:
                self.ended.add(row)
                del going[which]
            else:
                going[which] = (row[0], row[1] + 1)
        buffer, cells = self.buffers[lane], batch(rows, ends)
        for key in self.more:
            cells[key] = cells["observation"]
        if single:
            buffer.add(cells[0])
        else:
            buffer.extend(cells)
        self.rows[lane] = (self.rows[lane] + rows)[-self.each :]
        self.written += count

    @rule(data=st.data())
    def empty(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.buffers)).empty()
        self.rows = [[] for _ in self.buffers]

    @rule(data=st.data())
    def bring_other_keys(self, data: st.DataObject) -> None:
        self.empty(data)
        self.more = [] if self.more else ["more"]
        stored = self.written
        writer = data.draw(st.integers(0, len(self.buffers) - 1))
        self._write(writer, data, single=data.draw(st.booleans()))
        for other, buffer in enumerate(self.buffers):
            if other != writer:
                if stored:
                    with pytest.raises(RuntimeError, match="hand the buffer over again"):
                        len(buffer)
                self.buffers[other] = pickle.loads(pickle.dumps(self.buffers[writer]))
        self._claim()

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        if not any(self.rows):
            return
        buffer = data.draw(st.sampled_from(self.buffers))
        sample = buffer.sample()
        rows = sample["collector", "row"]
        new = sample.select(("next", "reward"))
        new["next", "reward"] = sample["collector", "traj_step"][:, None] + 1.0
        assert buffer.update_rows(rows, new).all()

    @rule(data=st.data())
    def slices_are_genuine(self, data: st.DataObject) -> None:
        if not any(self.rows):
            return
        sample = data.draw(st.sampled_from(self.buffers)).sample()
        names = sample["observation"].long()
        ids = sample["collector", "slice_ids"]
        same = ids[1:] == ids[:-1]
        expected = names[:-1] + torch.tensor([0, 1])
        assert (names[1:][same] == expected[same]).all()
        live = {row for lane in self.rows for row in lane}
        assert {(a, b) for a, b in names.tolist()} <= live
        following = sample["next", "observation"].long()
        assert (following == names + torch.tensor([0, 1])).all()

    @invariant()
    def every_handle_holds_the_same(self) -> None:
        if not hasattr(self, "buffers"):
            return
        live = sorted(row for lane in self.rows for row in lane)
        for buffer in self.buffers:
            assert len(buffer) == len(live)
            assert buffer.write_count == self.written
            if live:
                found = buffer[:]["observation"].long().tolist()
                assert sorted((a, b) for a, b in found) == live

    @invariant()
    def trajectories_are_those_of_the_lists(self) -> None:
        if not hasattr(self, "buffers") or not any(self.rows):
            return
        expected = []
        for lane in self.rows:
            there = set(lane)
            heads = [(n, s) for n, s in lane if s == 0 or (n, s - 1) not in there]
            for name, step in heads:
                length = 1
                while (name, step + length) in there:
                    length += 1
                expected.append(length)
        storage = self.buffers[-1].storage
        storage.session.memory.index.check(storage.back)
        with storage.session.memory.own_index():
            assert sorted(storage.trajectories().lengths().tolist()) == sorted(expected)


Model.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSharedBuffer = pytest.mark.slow(Model.TestCase)
