"""The buffer as a whole, against a list of rows."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import invariant
from tensordict import TensorClass, TensorDict

from rl_layout import Segments, keys
from rl_layout.internals import marked_rows
from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    Storage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
    Writer,
)
from rl_replay.testing import BufferMachine
from rl_replay.testing.linked_ring import linked


class LinkedBuffers(BufferMachine):
    """The links of the rows are the ones that their markers prove, too."""

    storages: ClassVar[dict[str, Callable[[int], Storage]]] = {
        "memory": LazyTensorStorage,
        "lossless": lambda size: LazyTensorStorage(size, lossless=True),
        "file": LazyMemmapStorage,
        "list": ListStorage,
    }

    @invariant()
    def trajectories_are_what_the_markers_say(self) -> None:
        if not hasattr(self, "model") or not len(self.model):
            return
        storage, model = self.buffer.storage, self.model
        if isinstance(storage, ListStorage):
            return
        storage.trajectories().check(storage.back)
        live = sorted((number, place) for place, number in model.row_ids.items())
        expected = linked([(n, marked_rows(model.rows[p].unsqueeze(0))[0]) for n, p in live])
        back = storage.back
        oldest = live[0][0]
        found = {n: n - int(back[p]) for n, p in live if back[p] > 0 and n - back[p] >= oldest}
        if max(self.taken) <= 90:  # no step was stored twice
            assert found == expected


LinkedBuffers.TestCase.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)

TestBufferMachine = LinkedBuffers.TestCase


def test_writes_leave_the_data_of_the_caller_as_they_are(steps) -> None:
    buffer, rows = TensorDictReplayBuffer(storage=LazyTensorStorage(9)), steps(5)
    kept = rows.clone()
    buffer.extend(rows)
    buffer.add(rows[0])
    buffer[1] = rows[4]
    buffer.update_rows(torch.tensor([2]), rows[:1])
    assert set(rows.keys(True, True)) == set(kept.keys(True, True))
    assert (rows == kept).all()
    rows["a"].fill_(-1)
    assert buffer[:]["a"].tolist() == [0, 4, 0, 3, 4, 0]


def test_arrays_and_numbers_are_stored_as_tensors() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(np.arange(4))
    buffer.add(torch.tensor(4))
    buffer.add(np.int64(5))
    assert buffer[:].tolist() == [0, 1, 2, 3, 4, 5]


def test_parts_can_be_exchanged(filled, steps) -> None:
    buffer = filled(batch_size=2)
    old, new = buffer.storage, LazyTensorStorage(3)
    assert buffer.set_storage(new) is old
    assert len(buffer) == 0
    sampler = SamplerWithoutReplacement(shuffle=False)
    assert isinstance(buffer.set_sampler(sampler), RandomSampler)
    assert isinstance(buffer.set_writer(TensorDictRoundRobinWriter()), RoundRobinWriter)
    buffer.extend(steps(3))
    assert buffer.sample()["a"].tolist() == [0, 1]
    assert buffer[:]["index"].tolist() == [0, 1, 2]
    generator = torch.Generator()
    buffer.set_rng(generator)
    assert sampler.generator is generator
    assert buffer.set_rng(None) is generator


def test_sampler_and_writer_of_the_caller_are_asked(filled, steps) -> None:
    class Newest(Sampler):
        def sample(self, storage, batch_size):
            window = storage.ring.window()
            return window.numbers(torch.arange(len(window))[-batch_size:]), {"kind": "newest"}

    class Limited(Writer):
        def check(self, count):
            if count > 0:
                raise ValueError("full")

    buffer = filled(sampler=Newest())
    sample, info = buffer.sample(2, return_info=True)
    assert sample["a"].tolist() == [3, 4]
    assert info["kind"] == "newest"
    buffer.set_writer(Limited())
    with pytest.raises(ValueError, match="full"):
        buffer.extend(steps(1))


def test_explicit_keys_cut_trajectories_also_of_stored_rows() -> None:
    rows = trajectories([6, 4], EndKind.CUT)
    rows["game"] = torch.tensor([1, 1, 2, 2, 2, 2, 3, 3, 3, 4])
    rows["next", "life_lost"] = torch.tensor([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]).bool().unsqueeze(-1)
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(rows)
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [4, 6]
    buffer.set_sampler(SliceSampler(num_slices=1, traj_key="game"))
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [1, 2, 3, 4]
    buffer.set_sampler(SliceSampler(num_slices=1, end_key=("next", "life_lost")))
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [2, 4, 4]
    with pytest.raises(KeyError, match="no column 'nothing' to find trajectories by"):
        buffer.set_sampler(SliceSampler(num_slices=1, traj_key="nothing"))


def test_slices_of_columns_span_several_extends() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=2), sampler=SliceSampler(slice_len=4), batch_size=24
    )
    batch = environments(3, 18, [9], [EndKind.TERMINATED])
    for start in range(0, 18, 2):
        buffer.extend(batch[:, start : start + 2])
    sample = buffer.sample()
    assert len(sample) == 24
    segments = Segments.of(sample)
    assert segments.lengths.tolist() == [4] * 6
    assert (buffer[tuple(sample["index"].unbind(-1))]["action"] == sample["action"]).all()


def test_slices_without_replacement_take_every_trajectory_once_an_epoch() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(60),
        sampler=SliceSamplerWithoutReplacement(num_slices=2),
        batch_size=4,
    )
    buffer.extend(trajectories([5, 4, 3, 6]))
    ids = torch.cat([batch["collector", "traj_ids"][::2] for batch in buffer])
    assert sorted(ids.tolist()) == [7, 8, 9, 10]


def test_write_count_counts_overwritten_rows(filled, steps) -> None:
    buffer = filled(9)
    buffer.extend(steps(4))
    buffer.empty()
    buffer.add(steps(1)[0])
    assert (buffer.write_count, len(buffer)) == (14, 1)


def test_lazy_stacks_and_locked_rows_are_stored(steps) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(TensorDict.lazy_stack(list(steps(3).unbind(0))))
    buffer.extend(steps(2, 3).lock_())
    buffer.add(steps(1, 5)[0].lock_())
    assert buffer[:]["a"].tolist() == [0, 1, 2, 3, 4, 5]


def test_wait_until_returns_when_a_thread_has_written(steps) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    writer = threading.Thread(target=lambda: [buffer.add(row) for row in steps(5)])
    writer.start()
    buffer.wait_until(5, timeout=30)
    assert len(buffer) == 5
    writer.join()
    with pytest.raises(TimeoutError, match="waited 0 s for 6 rows and got 5"):
        buffer.wait_until(6, timeout=0)
    with pytest.raises(ValueError, match="never holds 10 rows, only 9"):
        buffer.wait_until(10)


def test_threads_may_write_and_sample_at_once(steps) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=20)
    buffer.extend(steps(50))
    bad = []

    def read() -> None:
        for _ in range(100):
            sample = buffer.sample()
            if not torch.equal(sample["a"] + 0.5, sample["b", "c"].squeeze(-1).double()):
                bad.append(sample)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for first in range(0, 3000, 30):
        buffer.extend(steps(30, first))
    for thread in threads:
        thread.join()
    assert not bad


@pytest.mark.parametrize("lossless", [False, True])
def test_load_state_dict_restores_rows_links_and_draws(lossless: bool) -> None:
    def make() -> ReplayBuffer:
        return ReplayBuffer(
            storage=LazyTensorStorage(20, lossless=lossless),
            sampler=SamplerWithoutReplacement(),
            batch_size=3,
            generator=torch.Generator().manual_seed(3),
        )

    first, second = make(), make()
    rows = trajectories([9, 9, 9, 9], EndKind.CUT)
    first.extend(rows[:15])
    first.extend(rows[15:25])
    first.sample()
    second.load_state_dict(first.state_dict())
    assert (first[:] == second[:]).all()
    for buffer in (first, second):
        buffer.extend(rows[25:30])
    assert (first[:] == second[:]).all()
    for _ in range(4):
        assert torch.equal(first.sample()[keys.ROW], second.sample()[keys.ROW])
    assert torch.equal(torch.from_numpy(first.storage.back), torch.from_numpy(second.storage.back))
    assert sorted(first.storage.trajectories().lengths().tolist()) == sorted(
        second.storage.trajectories().lengths().tolist()
    )
    other = ReplayBuffer(storage=LazyTensorStorage(19), sampler=SamplerWithoutReplacement())
    with pytest.raises(ValueError, match="20 rows do not fit this storage of 19"):
        other.load_state_dict(first.state_dict())


def test_state_dict_holds_lists_and_empty_buffers(filled) -> None:
    first, second = ReplayBuffer(), ReplayBuffer()
    first.extend(["a", "b"])
    second.load_state_dict(first.state_dict())
    assert second[:] == ["a", "b"]
    empty = ReplayBuffer(storage=LazyTensorStorage(9))
    filled_one = filled()
    filled_one.load_state_dict(empty.state_dict())
    assert len(filled_one) == 0


def test_explain_describes_rows_and_markers() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, lossless=True))
    buffer.extend(trajectories([5, 3]))
    said = buffer.explain()
    assert "8 of 100 rows" in said
    assert "('collector', 'traj_ids')" in said
    assert "lossless: 75.0% of the rows" in said
    stats = buffer.stats()
    assert (stats["size"], stats["trajectories"], stats["linked_share"]) == (8, 2, 0.75)
    assert repr(buffer).startswith("ReplayBuffer(LazyTensorStorage(8 of 100 rows), RandomSampler()")


def test_explain_names_rows_that_do_not_fit_together() -> None:
    rows = trajectories([30], EndKind.CUT)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, lossless=True))
    for row in torch.randperm(30).tolist():
        buffer.extend(rows[row : row + 1].clone().set("is_init", torch.ones(1, 1).bool()))
    assert "30 of 30 pieces are single rows" in buffer.explain()
    assert "fewer than half are linked" in buffer.explain()


def test_pickle_refuses_a_buffer_that_is_not_shared(filled, steps) -> None:
    buffer = filled()
    for thing in (buffer, buffer.storage):
        with pytest.raises(TypeError, match="not shared"):
            pickle.dumps(thing)
    child = os.fork()
    if not child:
        try:
            buffer.extend(steps(1))
        except RuntimeError as error:
            os._exit(7 if "would be lost" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(buffer) == 5


def test_dataset_needs_no_writer_of_its_own() -> None:
    rows = trajectories([4, 3])
    buffer = ReplayBuffer(
        storage=TensorStorage(rows),
        writer=ImmutableDatasetWriter(),
        sampler=SliceSampler(slice_len=3),
        batch_size=6,
    )
    assert Segments.of(buffer.sample()).lengths.tolist() == [3, 3]


@pytest.mark.parametrize("shared", [False, True])
def test_tensorclasses_that_are_defined_in_a_function_are_stored_and_read(shared: bool) -> None:
    class Local(TensorClass):
        a: torch.Tensor

    buffer = ReplayBuffer(storage=LazyTensorStorage(80), batch_size=2, shared=shared)
    buffer.extend(Local(torch.arange(3), batch_size=[3]))
    buffer.add(Local(torch.tensor(3), batch_size=[]))
    assert isinstance(buffer[:], Local)
    assert buffer[:].a.tolist() == [0, 1, 2, 3]
    assert isinstance(buffer.sample(), Local)
