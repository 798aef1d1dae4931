"""Storages of several dimensions: columns, and elements of several steps."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    LazyTensorStorage,
    ReplayBuffer,
)


def test_sizes_are_rounded_up_to_whole_columns() -> None:
    storage = LazyTensorStorage(100, ndim=2)
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(environments(3, 22, [9], [EndKind.CUT]))
    assert buffer.storage.max_size == 102
    assert storage.shape == (34, 3)


def test_a_wrapped_storage_of_two_dimensions_keeps_its_columns_apart() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    for step in range(0, 10, 2):
        data = torch.tensor([[0, 1], [100, 101], [200, 201]]) + step
        buffer.extend(TensorDict({"a": data}, [3, 2]))
    assert (buffer[:]["a"] // 100).tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert sorted(buffer[0]["a"].tolist()) == [6, 7, 8, 9]


def test_adding_to_two_dimensions_adds_one_step_of_every_column() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    for step in range(3):
        index = buffer.add(TensorDict({"a": torch.arange(4) * 10 + step}, [4]))
    assert index.tolist() == [[0, 2], [1, 2], [2, 2], [3, 2]]
    assert buffer[:]["a"].tolist() == [[c * 10 + step for step in range(3)] for c in range(4)]


def test_other_columns_are_refused() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    buffer.extend(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"columns \[3\] .* got batch size \[2, 3\]"):
        buffer.extend(torch.zeros(2, 3))
    assert len(buffer) == 6


def test_whole_trajectories_may_be_elements() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    rows = trajectories([4, 4, 4]).reshape(3, 4)
    for row in rows[:2]:
        buffer.add(row)
    buffer.extend(rows[2:])
    assert len(buffer) == 3
    assert buffer.sample(7).batch_size == (7, 4)
    assert (buffer[:] == rows).all()
    assert buffer[1].batch_size == (4,)


@pytest.mark.parametrize("transform", [None, lambda rows: rows])
def test_a_list_of_elements_is_stored_as_they_are_one_by_one(transform) -> None:
    listed, added = (
        ReplayBuffer(storage=LazyTensorStorage(5), transform=transform) for _ in range(2)
    )
    rows = trajectories([4, 4, 4, 4]).reshape(4, 4)
    assert listed.extend([rows[0], rows[1]]).tolist() == [0, 1]
    listed.extend([rows[2]])
    listed.add(rows[3])
    for row in rows:
        added.add(row)
    assert len(listed) == len(added) == 4
    assert listed[:].batch_size == added[:].batch_size == (4, 4)
    assert (listed[:] == added[:]).all()


def test_a_list_of_several_rows_each_is_refused_as_one_of_them_is() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(trajectories([3]))
    for write in (lambda rows: buffer.extend([rows]), buffer.add):
        with pytest.raises(ValueError, match=r"one element of 0 batch dimension\(s\), got"):
            write(trajectories([2]))
    assert len(buffer) == 3


@pytest.mark.parametrize("form", ["tensordict", "tensor"])
def test_a_list_of_steps_of_all_columns_grows_along_time(form) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    steps = [torch.arange(4) * 10 + step for step in range(3)]
    if form == "tensordict":
        steps = [TensorDict({"a": step}, [4]) for step in steps]
    index = buffer.extend(steps[:2])
    assert index[:3].tolist() == [[0, 0], [0, 1], [1, 0]]
    buffer.add(steps[2])
    rows = buffer[:]["a"] if form == "tensordict" else buffer[:]
    assert rows.tolist() == [[c * 10 + step for step in range(3)] for c in range(4)]
    with pytest.raises(ValueError, match=r"at least 1 batch dimension\(s\) here, got 0"):
        buffer.extend([step[0] for step in steps])
