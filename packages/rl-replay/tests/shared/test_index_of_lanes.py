"""An index addresses the same row wherever several writers have a part of the positions each."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

KINDS = {"memory": LazyTensorStorage, "file": LazyMemmapStorage}


def rows(first: int, count: int, ndim: int = 1) -> TensorDict:
    number = torch.arange(first, first + count)
    flat = TensorDict({"number": number}, [count])
    return flat if ndim == 1 else flat.view(2, -1)


def written_by_two(buffer: TensorDictReplayBuffer, ndim: int = 1) -> Any:
    """Six rows of this process, ten of another one; the index of the latter."""
    buffer.extend(rows(0, 6, ndim))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(buffer.extend(rows(100, 10, ndim)).tolist()))
    child.start()
    index = torch.tensor(queue.get())
    child.join(60)
    assert child.exitcode == 0
    return index


def filled(kind: str, ndim: int = 1) -> tuple[TensorDictReplayBuffer, Any]:
    buffer = TensorDictReplayBuffer(
        storage=KINDS[kind](36, ndim=ndim, lanes=3), batch_size=60, shared=True
    )
    index = written_by_two(buffer, ndim)
    return buffer, index if ndim == 1 else tuple(index.unbind(-1))


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_a_sample_or_a_write_addresses_that_row(kind: str, ndim: int) -> None:
    buffer, written = filled(kind, ndim)
    sample = buffer.sample()
    index = sample["index"] if ndim == 1 else tuple(sample["index"].unbind(-1))
    assert torch.equal(buffer[index]["number"], sample["number"])
    assert buffer[written]["number"].tolist() == list(range(100, 110))
    buffer[written] = rows(200, 10)
    assert buffer[written]["number"].tolist() == list(range(200, 210))
    stored = buffer[:]["number"].reshape(-1)
    assert sorted(stored.tolist()) == [*range(6), *range(200, 210)]


def test_whole_numbers_are_positions_and_negative_ones_count_from_the_last_row() -> None:
    buffer, written = filled("memory")
    first = int(written[0])
    assert first == 12  # each of three writers has 12 positions of 36
    assert buffer[first]["number"] == 100
    assert buffer[5]["number"] == 5
    assert buffer[-1]["number"] == 109
    assert buffer[[5, -1, first]]["number"].tolist() == [5, 109, 100]
    assert buffer[torch.arange(16) > 13]["number"].tolist() == [108, 109]
    assert buffer[4:8]["number"].tolist() == [4, 5, 100, 101]
    assert buffer.storage[first]["number"] == 100


@pytest.mark.parametrize(
    ("ndim", "index", "message"),
    [
        (1, 6, "stored at index 6: 16 rows of 36 are. Each of 3 writers has a part"),
        (1, [0, 22], "stored at index 22: 16 rows of 36 are. Each of 3 writers has a part"),
        (1, torch.tensor([35, 40]), "stored at index 35"),
        (1, -17, "row -17 of a buffer of 16"),
        (2, (0, 3), "no rows are stored at step 3: the steps of 8 are. Each writer has a part"),
        (2, (slice(None), torch.tensor([0, 11])), "stored at step 11"),
        (2, ([0], [99]), "stored at step 99"),
    ],
)
def test_an_index_without_a_row_is_refused(ndim: int, index: Any, message: str) -> None:
    buffer, _ = filled("memory", ndim)
    with pytest.raises(IndexError, match=message):
        buffer[index]


@pytest.mark.parametrize("index", [6, 35, 36, 500, -1])
def test_priorities_of_an_index_without_a_row_are_refused(index: int) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(36, lanes=3), batch_size=8, shared=True
    )
    written = written_by_two(buffer)
    buffer.update_priority(written, 3.0)
    with pytest.raises(IndexError, match=f"no row is stored at index {index}: 16 rows of 36 are"):
        buffer.update_priority(torch.tensor([0, index]), 1.0)
    assert buffer.stats()["highest_priority"] == 3
