"""Rows of a storage by index: what a buffer without transforms reads and writes."""

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, ListStorage, TensorDictReplayBuffer, TensorStorage

INDICES = [
    2,
    -1,
    slice(1, 4),
    [3, 0],
    [],
    torch.tensor([[1, 2], [4, 0]]),
    torch.arange(6) > 3,
    range(2),
]


def rows(first, last):
    return TensorDict({"a": torch.arange(first, last)}, [last - first])


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("written", [6, 10])
def test_rows_are_those_of_the_buffer(index, written):
    storage = LazyTensorStorage(6)
    buffer = TensorDictReplayBuffer(storage=storage)
    for first in range(0, written, 2):
        buffer.extend(rows(first, first + 2))
    ring = torch.arange(6) if written == 6 else torch.tensor([6, 7, 8, 9, 4, 5])
    assert torch.equal(storage[index]["a"], ring[index if index != range(2) else [0, 1]])
    assert torch.equal(storage.get(index)["a"], buffer[index]["a"])


def test_rows_of_two_dimensions():
    storage = LazyTensorStorage(12, ndim=2)
    TensorDictReplayBuffer(storage=storage).extend(
        TensorDict({"a": torch.arange(12).view(3, 4)}, [3, 4])
    )
    assert storage[1, 2]["a"].item() == 6
    assert storage[:, 0]["a"].tolist() == [0, 4, 8]


def test_the_next_rows_are_appended_and_stored_ones_replaced():
    storage = LazyTensorStorage(6)
    storage.set(range(3), rows(0, 3))
    storage.set(3, rows(30, 31)[0])
    assert storage[:]["a"].tolist() == [0, 1, 2, 30]
    storage[2:] = rows(4, 6)
    assert storage[:]["a"].tolist() == [0, 1, 4, 5]
    storage.set(torch.tensor([2, 0]), rows(7, 9))
    storage[1] = rows(70, 71)[0]
    assert storage[:]["a"].tolist() == [8, 70, 7, 5]


def test_objects_of_a_list():
    storage = ListStorage(4)
    storage.set([0, 1], ["x", "y"])
    storage[2] = "z"
    storage[0] = "w"
    assert storage.get(slice(None)) == ["w", "y", "z"]
    assert storage[1] == "y"


def test_rows_that_are_not_there_are_refused():
    storage = TensorStorage(rows(0, 4), max_size=4)
    with pytest.raises(IndexError):
        storage.get(9)
    with pytest.raises(IndexError):
        storage.set(9, rows(0, 1)[0])
