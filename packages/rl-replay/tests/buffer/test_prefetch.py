"""Batches prefetched: the same ones in the same order, and none that a change made stale."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
)


def steps(count: int, first: int = 0) -> TensorDict:
    row = torch.arange(first, first + count)
    return TensorDict({"a": row, "next": {"done": (row % 5 == 4).unsqueeze(-1)}}, [count])


def filled(prefetch: int | None, **parts) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100),
        prefetch=prefetch,
        generator=torch.Generator().manual_seed(5),
        **{"batch_size": 4, **parts},
    )
    buffer.extend(steps(20))
    return buffer


@pytest.mark.parametrize(
    "sampler", [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=2)]
)
def test_prefetched_batches_are_those_without_prefetching(sampler) -> None:
    drawn = [
        [buffer.sample()["a"].tolist() for _ in range(12)]
        for buffer in (filled(None, sampler=sampler()), filled(3, sampler=sampler()))
    ]
    assert drawn[0] == drawn[1]


def test_prefetched_epochs_end_as_without_prefetching() -> None:
    buffer = filled(3, sampler=SamplerWithoutReplacement(), batch_size=6)
    for _ in range(3):
        batches = [batch["a"].tolist() for batch in buffer]
        assert [len(batch) for batch in batches] == [6, 6, 6, 2]
        assert sorted(row for batch in batches for row in batch) == list(range(20))


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (
            lambda b: b.empty() or b.extend(steps(3, 50)),
            lambda s: set(s["a"].tolist()) <= {50, 51, 52},
        ),
        (
            lambda b: b.__setitem__("a", torch.arange(20) + 100),
            lambda s: bool((s["a"] >= 100).all()),
        ),
        (lambda b: setattr(b, "batch_size", 7), lambda s: len(s) == 7),
        (lambda b: b.append_transform(lambda t: t.set("b", t["a"])), lambda s: "b" in s),
        (
            lambda b: b.set_sampler(SliceSampler(slice_len=2)),
            lambda s: ("collector", "slice_ids") in s.keys(True),
        ),
        (
            lambda b: b.update_rows(
                torch.arange(20), TensorDict({"a": torch.arange(20) - 50}, [20])
            ),
            lambda s: bool((s["a"] < 0).all()),
        ),
        (lambda b: b.set_storage(other()), lambda s: bool((s["a"] == 7).all())),
    ],
    ids=["empty", "set", "batch size", "transform", "sampler", "update", "storage"],
)
def test_prefetched_batches_are_dropped_by_every_change(change, seen) -> None:
    buffer = filled(3)
    buffer.sample()
    assert buffer.stats()["prefetched"] == 3
    change(buffer)
    for _ in range(5):
        assert seen(buffer.sample())


def other() -> LazyTensorStorage:
    storage = LazyTensorStorage(9)
    storage.extend(steps(8).apply(lambda leaf: torch.full_like(leaf, 7)))
    return storage


def test_extend_can_be_sampled_from_at_once() -> None:
    buffer = filled(3)
    for first in range(20, 60, 4):
        buffer.sample()
        buffer.extend(steps(4, first))
        drawn = torch.cat([buffer.sample()["a"] for _ in range(40)])
        assert drawn.max() >= first  # the chance of missing four rows of sixty 160 times is 1e-5


def test_stale_batches_lose_no_row_of_an_epoch() -> None:
    buffer = filled(3, sampler=SamplerWithoutReplacement(), batch_size=4)
    first = buffer.sample()["a"].tolist()
    buffer.append_transform(lambda batch: batch)
    rest = [batch["a"].tolist() for batch in buffer]
    assert sorted(first + [row for batch in rest for row in batch]) == list(range(20))


@pytest.mark.parametrize(
    "sampler", [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=2)]
)
def test_samples_after_a_change_are_those_without_prefetching(sampler) -> None:
    def drawn(buffer: ReplayBuffer) -> list[list[int]]:
        found = [buffer.sample()["a"].tolist() for _ in range(3)]
        buffer.extend(steps(5, 100))
        found += [buffer.sample()["a"].tolist() for _ in range(3)]
        found += [buffer.sample(2)["a"].tolist() for _ in range(2)]
        return found + [buffer.sample()["a"].tolist() for _ in range(3)]

    assert drawn(filled(3, sampler=sampler())) == drawn(filled(None, sampler=sampler()))


def test_rewinding_leaves_a_generator_that_was_seeded_since() -> None:
    generator, firsts = torch.Generator().manual_seed(5), []
    for prefetch in (None, 3):
        buffer = filled(prefetch)
        buffer.set_rng(generator)
        buffer.sample()
        generator.manual_seed(8)
        buffer.extend(steps(1))
        firsts.append(buffer.sample()["a"].tolist())
    assert firsts[0] == firsts[1]


@pytest.mark.parametrize("prefetch", [None, 3])
def test_set_sampler_begins_the_epoch_of_the_sampler(prefetch: int | None) -> None:
    buffer = filled(prefetch, batch_size=5)
    buffer.sample()
    sampler = SamplerWithoutReplacement(shuffle=False)
    buffer.set_sampler(sampler)
    assert [batch["a"].tolist() for batch in buffer] == torch.arange(20).view(4, 5).tolist()
    buffer.sample()
    buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))  # not in mid-epoch of the former
    assert buffer.sample()["a"].tolist() == [0, 1, 2, 3, 4]


class Walk(Sampler):
    """Continues from its last row, unless it is reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.place = 0

    def sample(self, storage, batch_size):
        window = storage.ring.window()
        self.place += batch_size
        return window.numbers(torch.arange(self.place - batch_size, self.place) % len(window)), {}

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_empty_resets_the_sampler() -> None:
    buffer = filled(3, sampler=Walk())
    assert [buffer.sample()["a"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    buffer.empty()
    buffer.extend(steps(9, 30))
    assert buffer.sample()["a"].tolist() == [30, 31, 32, 33]


def test_transform_inserted_into_the_compose_is_run() -> None:
    for prefetch in (None, 3):
        buffer = filled(prefetch)
        buffer.sample()
        buffer.transform.append(lambda batch: batch.set("b", batch["a"]))
        assert "b" in buffer.sample()
        buffer.transform.insert(0, lambda batch: batch.set("c", batch["a"]))
        assert "c" in buffer.sample()


@pytest.mark.parametrize(
    "sampler", [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=2)]
)
def test_dump_leaves_prefetched_batches_to_be_sampled_again(sampler, tmp_path) -> None:
    one = filled(3, sampler=sampler())
    one.sample()
    one.dumps(tmp_path)
    others = [filled(prefetch, sampler=sampler()) for prefetch in (None, 2)]
    for other in others:
        for _ in range(3):  # so that its own state is another one than the dumped one
            other.sample()
        other.loads(tmp_path)
    for _ in range(5):
        rows = one.sample()["a"].tolist()
        assert [other.sample()["a"].tolist() for other in others] == [rows, rows]


def load_other_rows(buffer: ReplayBuffer) -> None:
    """Loads the state of a buffer of the same parts whose rows are 100 and more."""
    other = filled(1)
    other.append_transform(lambda batch: batch)
    other["a"] = torch.arange(20) + 100
    buffer.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    "change",
    [lambda b: b.__setitem__("a", torch.arange(20) + 100), load_other_rows],
    ids=["rows", "load_state_dict"],
)
def test_batch_in_its_thread_is_dropped_by_a_change(change) -> None:
    buffer = filled(1)
    entered, go_on = threading.Event(), threading.Event()

    def slow(batch):
        entered.set()
        assert go_on.wait(30)
        return batch

    buffer.append_transform(slow)
    result = []
    reader = threading.Thread(target=lambda: result.append(buffer.sample()))
    reader.start()
    assert entered.wait(30)
    change(buffer)
    go_on.set()
    reader.join()
    assert (result[0]["a"] >= 100).all()


def test_error_in_a_thread_reaches_the_caller() -> None:
    buffer = filled(2)

    def fail(batch):
        raise ZeroDivisionError("in the transform")

    buffer.append_transform(fail)
    with pytest.raises(ZeroDivisionError, match="in the transform"):
        buffer.sample()


def test_sample_of_another_batch_size_is_drawn_anew() -> None:
    buffer = filled(3)
    assert [len(buffer.sample(size)) for size in (4, 6, 6, 4)] == [4, 6, 6, 4]


def test_prefetch_needs_a_batch_size() -> None:
    with pytest.raises(ValueError, match="prefetch=2 needs a batch_size"):
        ReplayBuffer(prefetch=2)


def test_a_handle_prefetches_rows_that_came_after_another_one_dropped_all() -> None:
    storage, sampler = LazyTensorStorage(100, lanes=1), SliceSampler(slice_len=2)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=4, prefetch=2, shared=True)
    buffer.extend(steps(20))
    handle = pickle.loads(pickle.dumps(buffer))  # as another process has it
    buffer.empty()
    buffer.extend(steps(20, 50))
    assert handle.sample()["a"].min() >= 50
    assert handle.stats()["prefetched"] == 2
