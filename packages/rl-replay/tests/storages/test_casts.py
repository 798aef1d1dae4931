"""Rows whose whole numbers come in another dtype than the first ones did."""

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

STORAGES = {
    "memory": lambda: LazyTensorStorage(9),
    "lossless": lambda: LazyTensorStorage(9, lossless=["a"]),
    "file": lambda: LazyMemmapStorage(9),
}


def rows(action, **others):
    return TensorDict({"a": torch.zeros(len(action), 2), "action": action, **others}, [len(action)])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    ("stored", "given", "values"),
    [
        (torch.bool, torch.int64, [[0, 1], [1, 0]]),
        (torch.int32, torch.int64, [[-7, 2**31 - 1]]),
        (torch.int64, torch.bool, [[True, False]]),
        (torch.uint8, torch.int64, [[0, 255]]),
    ],
)
def test_whole_numbers_are_cast_where_nothing_is_lost(storage, stored, given, values):
    buffer = ReplayBuffer(storage=STORAGES[storage]())
    buffer.extend(rows(torch.zeros(1, 2, dtype=stored)))
    buffer.extend(rows(torch.tensor(values, dtype=given)))
    buffer.add(rows(torch.tensor(values, dtype=given))[0])
    assert buffer["action"].dtype is stored
    assert buffer["action"][1:].tolist() == [*values, values[0]]


@pytest.mark.parametrize("write", ["extend", "add"])
@pytest.mark.parametrize(
    ("stored", "value"), [(torch.bool, 2), (torch.int32, 2**31), (torch.uint8, -1)]
)
def test_cast_that_changes_a_value_is_refused_by_name(stored, value, write):
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(rows(torch.zeros(1, 2, dtype=stored)))
    wrong = rows(torch.tensor([[0, value]]))
    with pytest.raises(
        TypeError, match=rf"leaf 'action': .* values that it does not have, as {value}"
    ):
        buffer.extend(wrong) if write == "extend" else buffer.add(wrong[0])
    assert len(buffer) == 1


def test_numbers_with_fractions_are_never_cast():
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(rows(torch.zeros(1, 2)))
    with pytest.raises(TypeError, match=r"leaf 'action': expected torch\.float32"):
        buffer.extend(rows(torch.zeros(1, 2).long()))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("gone", ["action", ("next", "reward"), ("next", "done"), "is_init"])
@pytest.mark.parametrize("write", ["extend", "add"])
def test_missing_leaf_is_named(storage, gone, write):
    def whole(count):
        after = {"reward": torch.zeros(count, 1), "done": torch.zeros(count, 1).bool()}
        return rows(torch.zeros(count, 1), is_init=after["done"].clone(), next=after)

    buffer = ReplayBuffer(storage=STORAGES[storage]())
    buffer.extend(whole(2))
    name = gone if isinstance(gone, str) else str(gone).strip("()")
    lacking = whole(1).exclude(gone)
    with pytest.raises(KeyError, match=f"leaf .*{name}.* is missing"):
        getattr(buffer, write)(lacking if write == "extend" else lacking[0])
    assert len(buffer) == 2
