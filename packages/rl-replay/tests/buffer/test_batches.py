"""Batches of a buffer: drawn, gathered, marked."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_layout import Segments, check_layout, keys
from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)


def test_samples_are_copies_with_their_index_and_number(filled) -> None:
    buffer = filled()
    sample, info = buffer.sample(7, return_info=True)
    assert torch.equal(sample["index"], info["index"])
    assert torch.equal(sample[keys.ROW], info["row"])
    assert (buffer[sample["index"]] == sample.exclude("index", keys.COLLECTOR)).all()
    sample["a"].fill_(-1)
    assert buffer[:]["a"].min() == 0


def test_sample_can_be_stored_again(filled) -> None:
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


def test_epoch_returns_every_row_once(filled) -> None:
    buffer = filled(sampler=RandomSampler(replacement=False), batch_size=2)
    assert isinstance(buffer.sampler, SamplerWithoutReplacement)
    for _ in range(2):
        batches = [batch["a"].tolist() for batch in buffer]
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert sorted(a for batch in batches for a in batch) == [0, 1, 2, 3, 4]


def test_epoch_may_drop_its_short_last_batch(filled) -> None:
    sampler = SamplerWithoutReplacement(drop_last=True, shuffle=False)
    buffer = filled(sampler=sampler, batch_size=2)
    assert [batch["a"].tolist() for batch in buffer] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="drop_last leaves nothing of 5 rows"):
        buffer.sample(6)
    with pytest.raises(ValueError, match="drop_last needs a batch_size"):
        filled(sampler=SamplerWithoutReplacement(drop_last=True))


def test_epoch_begins_anew_when_rows_are_written(filled, steps) -> None:
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


def test_index_of_a_sample_has_memory_of_its_own(filled) -> None:
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


def test_sample_refuses_an_empty_buffer() -> None:
    for storage in (LazyTensorStorage(9), ListStorage(9)):
        with pytest.raises(ValueError, match="there is no row to draw"):
            ReplayBuffer(storage=storage).sample(3)
    with pytest.raises(ValueError, match="no rows to sample yet"):
        ReplayBuffer(sampler=SamplerWithoutReplacement()).sample(3)


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
