"""The buffer as a whole, against a list of rows."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import invariant
from tensordict import TensorClass, TensorDict, lazy_stack

from rl_layout import Segments, check_layout, keys
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
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
    Writer,
)
from rl_replay.testing import BufferMachine
from rl_replay.testing.reference_links import linked, rows_of


def steps(count: int, first: int = 0) -> TensorDict:
    row = torch.arange(first, first + count)
    return TensorDict({"a": row, "b": {"c": row.unsqueeze(-1) + 0.5}}, [count])


def filled(count: int = 5, **parts) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), **parts)
    buffer.extend(steps(count))
    return buffer


class LinkedBuffers(BufferMachine):
    """The links of the rows are those that their markers prove, too."""

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
        expected = linked([(n, rows_of(model.rows[p].unsqueeze(0))[0]) for n, p in live])
        back = storage.back
        oldest = live[0][0]
        found = {n: n - int(back[p]) for n, p in live if back[p] > 0 and n - back[p] >= oldest}
        if max(self.taken) <= 90:  # no step was stored twice
            assert found == expected


LinkedBuffers.TestCase.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
TestBufferMachine = LinkedBuffers.TestCase


def test_writes_leave_the_data_of_the_caller_as_they_are() -> None:
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


def test_samples_are_copies_with_their_index_and_number() -> None:
    buffer = filled()
    sample, info = buffer.sample(7, return_info=True)
    assert torch.equal(sample["index"], info["index"])
    assert torch.equal(sample[keys.ROW], info["row"])
    assert (buffer[sample["index"]] == sample.exclude("index", keys.COLLECTOR)).all()
    sample["a"].fill_(-1)
    assert buffer[:]["a"].min() == 0


def test_sample_can_be_stored_again() -> None:
    buffer = filled()
    buffer.extend(buffer.sample(3))
    assert set(buffer[:].keys(True, True)) == {"a", ("b", "c")}
    assert len(buffer) == 8


def test_slices_of_a_stored_sample_stay_apart() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(500), sampler=SliceSampler(num_slices=4), batch_size=32
    )
    buffer.extend(trajectories([30, 20, 40]))
    for _ in range(3):
        sample = buffer.sample()
        assert check_layout(sample).ok
        before = len(buffer.storage.trajectories())
        buffer.extend(sample)
        assert len(buffer.storage.trajectories()) == before + 4


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_slices_are_marked_before_transforms_run(kind) -> None:
    seen = []
    buffer = kind(
        storage=LazyTensorStorage(99),
        sampler=SliceSampler(num_slices=4),
        batch_size=12,
        transform=lambda batch: seen.append(len(Segments.of(batch))) or batch,
    )
    buffer.extend(trajectories([10, 20]))
    sample = buffer.sample()
    assert seen == [4]
    assert sample["is_init"].sum() == 4
    assert sample[keys.NEXT_DONE].sum() == 4
    assert sample["collector", "slice_ids"].tolist() == [i for i in range(4) for _ in range(3)]


@pytest.mark.parametrize("pad_output", [False, True])
def test_flags_added_by_sampling_cut_where_the_sample_is_stored(pad_output: bool) -> None:
    rows = trajectories([3, 20, 9]).exclude("is_init", keys.NEXT_TRUNCATED, "truncated")
    sampler = SliceSampler(slice_len=5, pad_output=pad_output)
    buffer = ReplayBuffer(storage=LazyTensorStorage(500), sampler=sampler, batch_size=40)
    buffer.extend(rows)
    sample = buffer.sample()
    real = int(sample.get(keys.MASK, torch.ones(len(sample))).sum())
    buffer.extend(sample)
    assert len(buffer) == 32 + real
    assert len(buffer.storage.trajectories()) == 3 + 8
    assert set(buffer[:].keys(True, True)) == set(rows.keys(True, True))


def test_indexing_is_that_of_a_tensor() -> None:
    buffer, rows = filled(), steps(5)
    for index in (0, -1, slice(None), slice(1, 4, 2), torch.tensor([3, 0, 3]), [1, 2], range(2)):
        expected = rows[torch.tensor(list(index))] if isinstance(index, range) else rows[index]
        assert (buffer[index] == expected).all()
    mask = torch.tensor([True, False, True, False, False])
    assert (buffer[mask] == rows[mask]).all()
    assert (buffer[mask.numpy()] == rows[mask]).all()
    assert (buffer[np.array([3, 0])] == rows[[3, 0]]).all()
    assert (buffer[np.int64(-2)] == rows[-2]).all()
    assert buffer[torch.tensor([[0, 1], [2, 3]])].batch_size == (2, 2)
    assert torch.equal(buffer["a"], rows["a"])
    assert torch.equal(buffer["b", "c"], rows["b", "c"])
    assert torch.equal(buffer["_data", "a"], rows["a"])
    for index in (5, -6, torch.tensor([5])):
        with pytest.raises(IndexError):
            buffer[index]


def test_setitem_takes_rows_parts_of_rows_and_leaves() -> None:
    buffer = filled()
    buffer[1:3] = steps(2, 10)
    buffer[torch.tensor([4, 0])] = steps(2, 20).select("a")
    buffer["b", "c"] = torch.zeros(5, 1)
    buffer[3] = steps(1, 30)[0]
    assert buffer["a"].tolist() == [21, 10, 11, 30, 20]
    assert buffer["b", "c"].flatten().tolist() == [0, 0, 0, 30.5, 0]
    assert len(buffer) == 5
    assert buffer.extend(steps(1)).tolist() == [5]


def test_setitem_takes_trees_and_tensors() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend((torch.arange(4), {"b": torch.arange(4.0)}))
    buffer[1:3] = (torch.tensor([7, 8]), {"b": torch.zeros(2)})
    buffer[0] = (torch.tensor(9), {"b": torch.tensor(5.0)})
    assert buffer[:][0].tolist() == [9, 7, 8, 3]
    assert buffer[:][1]["b"].tolist() == [5, 0, 0, 3]
    assert buffer[3][1]["b"] == 3
    other = ReplayBuffer(storage=LazyTensorStorage(9))
    other.extend(torch.arange(4))
    other[2] = torch.tensor(-1)
    assert other[:].tolist() == [0, 1, -1, 3]


def test_markers_written_in_place_move_boundaries() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(trajectories([6, 4]))
    buffer[keys.NEXT_DONE] = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0, 1]).bool().unsqueeze(-1)
    index = buffer.storage.trajectories()
    assert sorted(index.lengths().tolist()) == [2, 4, 4]
    buffer[5] = buffer[5].update({"next": {"done": torch.tensor([False])}}).exclude("index")
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [2, 4, 4]


def test_update_rows_leaves_out_overwritten_rows() -> None:
    buffer = filled(9)
    sample = buffer.sample(50)
    buffer.extend(steps(4, 100))
    sample["a"] = sample["a"] - 50
    good = buffer.update_rows(sample[keys.ROW], sample)
    assert torch.equal(good, sample[keys.ROW] >= 4)
    written = set(sample["a"][good].tolist())
    assert set(buffer[:]["a"].tolist()) <= written | set(range(4, 9)) | {100, 101, 102, 103}
    assert set(buffer[:]["a"].tolist()) >= written | {100, 101, 102, 103}


def test_update_rows_of_slices_does_not_change_stored_markers() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(50), sampler=SliceSampler(num_slices=3), batch_size=9
    )
    rows = trajectories([10, 12])
    buffer.extend(rows)
    sample = buffer.sample()
    sample["action"] = sample["action"] + 5
    assert buffer.update_rows(sample[keys.ROW], sample).all()
    assert (buffer[:].exclude("action") == rows.exclude("action")).all()
    assert (buffer[:]["action"] != rows["action"]).any()
    with pytest.raises(KeyError, match="nothing to write"):
        buffer.update_rows(sample[keys.ROW], sample.select("is_init"))
    with pytest.raises(ValueError, match=r"expected as many rows as numbers, got \[\] rows"):
        buffer.update_rows(sample[keys.ROW][0], sample[0])


@pytest.mark.parametrize("shared", [False, True])
def test_update_rows_masks_overwritten_rows(shared):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6, lanes=1), shared=shared)
    rows = trajectories([6, 6])
    buffer.extend(rows[:6])
    old = buffer[:].select("action") + 1
    buffer.extend(rows[6:])
    assert buffer.update_rows(torch.arange(6), old).tolist() == [False] * 6
    assert (buffer[:].exclude("index") == rows[6:]).all()
    with pytest.raises(ValueError, match=r"as many rows as numbers, got \[6\] rows for .* \[2\]"):
        buffer.update_rows(torch.tensor([7, 8]), old)
    with pytest.raises(TypeError, match="numbers of rows are an int64 tensor"):
        buffer.update_rows(torch.arange(6.0), old)


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
def test_sample_refuses_what_is_no_batch_size_and_draws_nothing(sampler):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), sampler=sampler())
    buffer.extend(torch.arange(5))
    for size, error, message in (
        (0, ValueError, "batch_size must be at least 1, got 0"),
        (-1, ValueError, "batch_size must be at least 1, got -1"),
        (2.5, TypeError, "batch_size must be an integer, got float"),
    ):
        with pytest.raises(error, match=message):
            buffer.sample(size)
        with pytest.raises(error, match=message):
            buffer.batch_size = size
        with pytest.raises(error, match=message):
            ReplayBuffer(batch_size=size)
    assert sorted(buffer.sample(np.int64(5)).tolist())[0] >= 0
    with pytest.raises(ValueError, match="prefetch must be at least 1, got -1"):
        ReplayBuffer(prefetch=-1, batch_size=3)


def test_extend_takes_a_list_for_elements_and_a_tuple_for_a_tree() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend([torch.zeros(3), torch.ones(3)])
    assert len(buffer) == 2
    buffer.empty()
    buffer.extend((torch.zeros(4), torch.ones(4, 2)))
    assert len(buffer) == 4
    buffer.empty()
    buffer.extend([(torch.zeros(()), torch.ones(2)), (torch.ones(()), torch.ones(2))])
    assert buffer[:][0].tolist() == [0, 1]
    buffer.empty()
    assert buffer.extend([steps(1)[0], steps(2)[1]]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("elements", "error", "message"),
    [
        ([{"a": torch.zeros(3)}, {"b": torch.zeros(3)}], TypeError, "element 1 is {'b': ...}"),
        ([torch.zeros(3), None], TypeError, "holds tensors, got NoneType"),
        ([torch.zeros(3), (torch.zeros(3),)], TypeError, "first is a tensor, element 1 is"),
        ([torch.zeros(3), torch.zeros(4)], ValueError, "element 1 has .4.. Pad them"),
        ([{"a": torch.zeros(3)}, {"a": torch.zeros(4)}], ValueError, "first has .3. at"),
        ([steps(1)[0], 3], TypeError, "element 1 is a int"),
        ([steps(1)[0], steps(1)[0].exclude("a")], ValueError, "the same keys and shapes"),
        ([], ValueError, "got an empty list"),
    ],
)
def test_extend_refuses_a_list_of_elements_that_differ(elements, error, message) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    with pytest.raises(error, match=message):
        buffer.extend(elements)
    assert len(buffer) == 0


def test_lists_hold_objects_of_any_kind_in_any_order() -> None:
    mixed = [torch.zeros(2), None, "a", torch.zeros(3), steps(1)[0], {"a": 1}]
    for order in (mixed, mixed[::-1], mixed[3:] + mixed[:3]):
        buffer = ReplayBuffer()
        buffer.extend(order)
        assert all(one is two for one, two in zip(buffer[:], order, strict=True))
        buffer.sample(20)


def test_arrays_and_numbers_are_stored_as_tensors() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(np.arange(4))
    buffer.add(torch.tensor(4))
    buffer.add(np.int64(5))
    assert buffer[:].tolist() == [0, 1, 2, 3, 4, 5]


def test_setitem_refuses_values_that_do_not_cast_to_the_leaf() -> None:
    buffer = filled()
    rows = buffer[:]
    for value, error, message in (
        (torch.tensor([0.5] * 5), TypeError, "leaf 'a': expected torch.int64, got torch.float32"),
        (np.full(5, 0.5), TypeError, "leaf 'a': expected torch.int64, got torch.float64"),
        (0.5, TypeError, "leaf 'a': expected torch.int64"),
        (torch.zeros(4, dtype=torch.int64), ValueError, r"expected shape \[5\], .* got \[4\]"),
    ):
        with pytest.raises(error, match=message):
            buffer["a"] = value
    assert (buffer[:] == rows).all()
    buffer["a"] = 3
    buffer["b", "c"] = 2
    assert buffer["a"].tolist() == [3] * 5
    assert buffer["b", "c"].flatten().tolist() == [2.0] * 5


def test_getitem_names_a_leaf_that_no_tree_has() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend({"a": {"b": torch.arange(3)}})
    assert buffer["a", "b"].tolist() == [0, 1, 2]
    for key in ("z", ("a", "z"), ("a", "b", "c")):
        with pytest.raises(KeyError, match=r"no leaf .* in these rows: they are \{'a'"):
            buffer[key]


def test_epoch_returns_every_row_once() -> None:
    buffer = filled(sampler=RandomSampler(replacement=False), batch_size=2)
    assert isinstance(buffer.sampler, SamplerWithoutReplacement)
    for _ in range(2):
        batches = [batch["a"].tolist() for batch in buffer]
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert sorted(a for batch in batches for a in batch) == [0, 1, 2, 3, 4]


def test_epoch_may_drop_its_short_last_batch() -> None:
    sampler = SamplerWithoutReplacement(drop_last=True, shuffle=False)
    buffer = filled(sampler=sampler, batch_size=2)
    assert [batch["a"].tolist() for batch in buffer] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="drop_last leaves nothing of 5 rows"):
        buffer.sample(6)
    with pytest.raises(ValueError, match="drop_last needs a batch_size"):
        filled(sampler=SamplerWithoutReplacement(drop_last=True))


def test_epoch_begins_anew_when_rows_are_written() -> None:
    buffer = filled(sampler=SamplerWithoutReplacement(shuffle=False), batch_size=3)
    buffer.sample()
    buffer.extend(steps(1, 5))
    assert [batch["a"].tolist() for batch in buffer] == [[0, 1, 2], [3, 4, 5]]


def test_equal_generators_draw_equal_rows() -> None:
    for make in (RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=2)):
        drawn = []
        for _ in range(2):
            buffer = ReplayBuffer(
                storage=LazyTensorStorage(50),
                sampler=make(),
                batch_size=6,
                generator=torch.Generator().manual_seed(3),
            )
            buffer.extend(trajectories([7, 8]))
            drawn.append(torch.cat([buffer.sample()["index"] for _ in range(4)]))
        assert torch.equal(*drawn)
        other = torch.cat([buffer.sample()["index"] for _ in range(4)])
        assert not torch.equal(drawn[0], other)


def test_parts_can_be_exchanged() -> None:
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


@pytest.mark.parametrize("part", ["storage", "sampler", "writer"])
def test_buffer_names_a_part_of_the_wrong_kind(part: str) -> None:
    with pytest.raises(TypeError, match=f"{part} must be a {part.capitalize()}, got int"):
        ReplayBuffer(**{part: 3})


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("lossless", [False, True])
def test_leaves_of_contiguous_samples_have_memory_of_their_own(
    lossless: bool, shared: bool
) -> None:
    batches = []
    for contiguous in (False, True):
        storage = LazyTensorStorage(96, lossless=lossless)
        generator = torch.Generator().manual_seed(3)
        parts = {"generator": generator, "contiguous": contiguous, "shared": shared}
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=6, **parts)
        buffer.extend(trajectories([5, 6]))
        batches.append(buffer.sample())
    usual, apart = batches
    assert (usual == apart).all()
    assert not usual["observation"].is_contiguous()
    for leaf in apart.values(True, True):
        assert leaf.is_contiguous()
        assert leaf.untyped_storage().nbytes() == leaf.nbytes


def test_contiguous_samples_of_trees_have_memory_of_their_own() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), batch_size=6, contiguous=True)
    buffer.extend({"a": torch.rand(7, 3), "b": (torch.arange(7),)})
    sample = buffer.sample()
    assert sample["a"].is_contiguous()
    assert sample["b"][0].is_contiguous()


def test_index_of_a_sample_has_memory_of_its_own() -> None:
    buffer = filled(5, batch_size=4)
    sample = buffer.sample()
    rows = sample["collector", "row"].clone()
    sample["index"].add_(7)
    assert sample["collector", "row"].equal(rows)


class Fixed(Sampler):
    """Chooses the rows that it was given."""

    def __init__(self, rows: object) -> None:
        self.rows = rows

    def sample(self, storage: object, batch_size: int) -> tuple[Any, dict[str, Any]]:
        return self.rows, {}


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (torch.tensor([4, -2]), ValueError, "chose row -2: rows are numbered from 0"),
        (torch.tensor([4, 7]), ValueError, "chose row 7"),  # one day it will be there
        (torch.tensor([1, 4]), ValueError, "chose row 1"),  # it was overwritten
        (torch.tensor([4.0]), TypeError, "must return row numbers as int64"),
        ([4], TypeError, "must return row numbers as int64"),
    ],
)
def test_sample_refuses_rows_that_are_not_live(rows: object, error: Any, message: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), sampler=Fixed(rows), batch_size=2)
    buffer.extend(torch.arange(5))
    buffer.extend(torch.arange(5, 7))
    with pytest.raises(error, match=rf"Fixed\(\) {message}"):
        buffer.sample()
    buffer.set_sampler(Fixed(torch.tensor([2, 6])))
    assert buffer.sample().tolist() == [2, 6]


def test_sampler_and_writer_of_the_caller_are_asked() -> None:
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


def test_buffer_refuses_a_writer_that_keeps_old_rows_of_lossless_storage() -> None:
    class Best(Writer):
        overwrites_oldest = False

    with pytest.raises(ValueError, match="Best does not overwrite the oldest row first"):
        ReplayBuffer(storage=LazyTensorStorage(9, lossless=True), writer=Best())
    buffer = ReplayBuffer(storage=LazyTensorStorage(9, lossless=True))
    with pytest.raises(ValueError, match="Best does not overwrite"):
        buffer.set_writer(Best())
    assert isinstance(buffer.writer, RoundRobinWriter)


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


def test_elements_of_lists_are_exchanged_as_they_are() -> None:
    buffer = ReplayBuffer(transform=lambda items: items)
    buffer.add("a")
    buffer.extend([1, 2])
    buffer[0] = 5
    assert buffer.storage.items == [5, 1, 2]
    assert type(buffer.storage.items[0]) is int
    buffer[1:] = ["b", None]
    assert buffer.storage.items == [5, "b", None]
    with pytest.raises(ValueError, match="expected 2 elements, got 1"):
        buffer[1:] = ["b"]


def test_write_count_counts_overwritten_rows() -> None:
    buffer = filled(9)
    buffer.extend(steps(4))
    buffer.empty()
    buffer.add(steps(1)[0])
    assert (buffer.write_count, len(buffer)) == (14, 1)


def test_lazy_stacks_and_locked_rows_are_stored() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(TensorDict.lazy_stack(list(steps(3).unbind(0))))
    buffer.extend(steps(2, 3).lock_())
    buffer.add(steps(1, 5)[0].lock_())
    assert buffer[:]["a"].tolist() == [0, 1, 2, 3, 4, 5]


def test_wait_until_returns_when_a_thread_has_written() -> None:
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


@pytest.mark.parametrize("shared", [False, True])
def test_sample_waits_for_the_first_rows_until_the_timeout(shared: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(80), batch_size=2, shared=shared)
    with pytest.raises(ValueError, match="there is no row to draw: write some first") as refused:
        buffer.sample()
    assert any("published" in note for note in getattr(refused.value, "__notes__", [])) == shared
    with pytest.raises(TimeoutError, match=r"waited 0\.01 s for the first rows"):
        buffer.sample(timeout=0.01)
    buffer.first_rows_timeout = 0.02
    with pytest.raises(TimeoutError, match=r"waited 0\.02 s for the first rows"):
        buffer.sample()
    started = threading.Event()

    def write() -> None:
        started.wait()
        buffer.extend(torch.arange(5))

    writer = threading.Thread(target=write)
    writer.start()
    started.set()
    assert buffer.sample(timeout=60.0).shape == (2,)
    writer.join()


class Weighing(Sampler):
    """Says something of each row."""

    def sample(self, storage, batch_size):
        numbers = storage.ring.window().numbers(torch.arange(batch_size))
        known = {"weight": numbers.double() / 2, ("a", "b"): numbers.numpy(), "beta": 0.5}
        return numbers, known | {"name": "weighing", "other": torch.ones(batch_size + 1)}


@pytest.mark.parametrize("shared", [False, True])
def test_info_of_a_sampler_reaches_the_sample(shared: bool) -> None:
    for kind in (ReplayBuffer, TensorDictReplayBuffer):
        buffer = kind(storage=LazyTensorStorage(80), sampler=Weighing(), shared=shared)
        buffer.extend(TensorDict({"x": torch.zeros(5)}, [5]))
        sample, info = buffer.sample(3, return_info=True)
        assert info["weight"].tolist() == [0, 0.5, 1]
        assert info["name"] == "weighing"
        if kind is ReplayBuffer:
            assert "weight" not in sample
            continue
        assert sample["weight"].tolist() == [0, 0.5, 1]
        assert sample["a", "b"].tolist() == [0, 1, 2]
        assert sample["beta"].tolist() == [0.5] * 3
        assert {"name", "other"}.isdisjoint(sample.keys())


def test_threads_may_write_and_sample_at_once() -> None:
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


def test_state_dict_holds_lists_and_empty_buffers() -> None:
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


def test_pickle_refuses_a_buffer_that_is_not_shared() -> None:
    buffer = filled()
    for thing in (buffer, buffer.storage):
        with pytest.raises(TypeError, match="not shared"):
            pickle.dumps(thing)
    child = os.fork()
    if not child:
        try:
            buffer.extend(steps(1))
        except RuntimeError as error:
            os._exit(7 if "would reach nobody" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(buffer) == 5


def test_tensordict_buffers_take_tensordicts_and_dicts_alone() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    for write in (buffer.add, buffer.extend):
        with pytest.raises(TypeError, match="a tensordict or a dict of arrays, got Tensor"):
            write(torch.ones(3))
    assert isinstance(buffer.writer, TensorDictRoundRobinWriter)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda b: b.extend(steps(10)), ValueError, "10 rows do not fit a storage of 9"),
        (lambda b: b.extend(steps(0)), ValueError, "nothing to store"),
        (lambda b: b.extend([]), ValueError, "empty list"),
        (lambda b: b.extend(steps(2).select("a")), KeyError, "is missing"),
        (lambda b: b.extend(steps(2).set("d", torch.ones(2))), KeyError, "no place for"),
        (lambda b: b.extend(steps(2).set("a", torch.ones(2))), TypeError, "expected torch.int64"),
        (lambda b: b.extend(steps(2).set("a", torch.ones(2, 3).long())), ValueError, "shape"),
        (lambda b: b.extend(torch.ones(2)), TypeError, "holds tensordict rows"),
        (lambda b: b.add(steps(1)[0].set("d", torch.ones(()))), KeyError, "no place for"),
        (lambda b: b.add(steps(1)[0].select("a")), KeyError, "is missing"),
        (lambda b: b.add(steps(2)), ValueError, "expected one element"),
        (lambda b: b.__setitem__("d", torch.ones(5)), KeyError, "no leaf"),
        (lambda b: b.__setitem__(0, TensorDict({"d": torch.ones(())})), KeyError, "no leaf"),
        (lambda b: b["d"], KeyError, "'d'"),
        (lambda b: b.sample(), ValueError, "Give batch_size"),
        (lambda b: next(iter(b)), ValueError, "Give batch_size"),
    ],
    ids=[
        "too many",
        "none",
        "empty list",
        "missing leaf",
        "unknown leaf",
        "dtype",
        "shape",
        "structure",
        "one row, unknown leaf",
        "one row, missing leaf",
        "one row that is two",
        "unknown leaf by key",
        "unknown leaf by index",
        "unknown leaf to read",
        "no batch size",
        "no batch size to iterate",
    ],
)
def test_refused_write_changes_nothing(write, error, message) -> None:
    for storage in (LazyTensorStorage(9), LazyTensorStorage(9, lossless=["a"])):
        buffer = ReplayBuffer(storage=storage)
        buffer.extend(steps(9))  # full, so that room for a refused write would cost rows
        before, window = buffer[:].clone(), buffer.storage.ring.window()
        with pytest.raises(error, match=message):
            write(buffer)
        assert buffer.storage.ring.window() == window
        assert buffer[:]["a"].tolist() == before["a"].tolist()
        assert buffer.extend(steps(1)).tolist() == [0]


def test_sample_refuses_an_empty_buffer() -> None:
    for storage in (LazyTensorStorage(9), ListStorage(9)):
        with pytest.raises(ValueError, match="there is no row to draw"):
            ReplayBuffer(storage=storage).sample(3)
    with pytest.raises(ValueError, match="no rows to sample yet"):
        ReplayBuffer(sampler=SamplerWithoutReplacement()).sample(3)


def test_storage_stays_open_after_a_first_batch_that_does_not_fit() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(3))
    with pytest.raises(ValueError, match="4 rows do not fit a storage of 3"):
        buffer.extend(steps(4))
    buffer.extend({"z": torch.ones(2)})
    assert len(buffer) == 2


def test_first_write_to_a_full_disk_is_an_error(tmp_path) -> None:
    rows = TensorDict({"a": torch.zeros(2, 1 << 20)}, [2])
    buffer = ReplayBuffer(storage=LazyMemmapStorage(1 << 30, scratch_dir=tmp_path))
    with pytest.raises(OSError, match="rows of"):
        buffer.extend(rows)
    assert len(buffer) == 0
    assert not os.listdir(tmp_path)


def test_dataset_needs_no_writer_of_its_own() -> None:
    rows = trajectories([4, 3])
    buffer = ReplayBuffer(
        storage=TensorStorage(rows),
        writer=ImmutableDatasetWriter(),
        sampler=SliceSampler(slice_len=3),
        batch_size=6,
    )
    assert Segments.of(buffer.sample()).lengths.tolist() == [3, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="samples are pinned if there is a device")
def test_pinning_changes_nothing_where_there_is_no_device() -> None:
    buffers = [
        ReplayBuffer(storage=LazyTensorStorage(9), pin_memory=pins, batch_size=4)
        for pins in (False, True)
    ]
    for buffer in buffers:
        buffer.extend(torch.arange(7))
        buffer.set_rng(torch.Generator().manual_seed(3))
    one, two = (buffer.sample() for buffer in buffers)
    assert torch.equal(one, two)
    assert not two.is_pinned()


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


def test_add_names_the_tensordict_to_wrap_a_row_in() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    row = (torch.zeros(2),)
    with pytest.raises(TypeError, match=r"got tuple: "):
        buffer.add(row)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got tuple: "):
        buffer.extend(row)  # type: ignore[arg-type]


class CountedWriter(Writer):
    """Notes how many rows each call brings."""

    def __init__(self):
        self.counts = []

    def check(self, count):
        self.counts.append(count)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(trajectories([3, 4]), 7, id="flat"),
        pytest.param(environments(2, 5, [5], [EndKind.CUT]), 10, id="batch of trajectories"),
        pytest.param([1, 2, 3], 3, id="list"),
        pytest.param(torch.arange(6), 6, id="tensor"),
        pytest.param({"a": torch.zeros(4, 2)}, 4, id="dict"),
        pytest.param((torch.zeros(5), torch.zeros(5, 3)), 5, id="tuple"),
    ],
)
def test_writer_is_told_how_many_rows_a_call_brings(data, count):
    writer = CountedWriter()
    ReplayBuffer(storage=LazyTensorStorage(50), writer=writer).extend(data)
    assert writer.counts == [count]


@pytest.mark.parametrize("ahead", [None, 2])
def test_samples_of_tensordicts_in_a_list_say_which_rows_they_are(ahead):
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=4, prefetch=ahead)
    for at in range(5):
        buffer.add(TensorDict({"number": torch.tensor(at)}))
    sample = buffer.sample()
    assert torch.equal(sample["index"], sample["number"])
    assert torch.equal(sample["collector", "row"], sample["number"])
    assert sample["priority_weight"].shape == (4,)


def test_priorities_of_tensordicts_in_a_list_are_drawn_by():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=8)
    for at in range(5):
        buffer.add(TensorDict({"number": torch.tensor(at)}))
    sample = buffer.sample()
    sample["td_error"] = (sample["number"] == 3).float() * 1e9
    buffer.update_tensordict_priority(sample)  # stratified: all five were drawn
    assert (buffer.sample()["number"] == 3).all()


def test_elements_of_a_list_that_differ_in_shape_are_named_too():
    buffer = TensorDictReplayBuffer(batch_size=9, collate_fn=lazy_stack)
    for size in (1, 2):
        buffer.add(TensorDict({"word": torch.zeros(size)}))
    sample = buffer.sample()
    assert [len(one["word"]) - 1 for one in sample.unbind(0)] == sample["index"].tolist()


@pytest.mark.parametrize(
    "again", [lambda rows: rows, lambda rows: list(rows.unbind(0))], ids=["whole", "rows"]
)
def test_a_sample_of_a_list_that_is_stored_again_is_like_the_other_rows(again):
    buffer = TensorDictReplayBuffer(batch_size=3)
    for at in range(4):
        buffer.add(TensorDict({"number": torch.tensor(at)}))
    buffer.extend(again(buffer.sample()))
    assert {str(set(item.keys(True))) for item in buffer.storage.items} == {"{'number'}"}
    assert buffer.sample(7).shape == (7,)
