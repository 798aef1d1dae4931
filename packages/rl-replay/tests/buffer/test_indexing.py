"""Rows of a buffer by index: read, exchanged, updated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)


def test_indexing_is_that_of_a_tensor(filled, steps) -> None:
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


def test_setitem_takes_rows_parts_of_rows_and_leaves(filled, steps) -> None:
    buffer = filled()
    buffer[1:3] = steps(2, 10)
    buffer[torch.tensor([4, 0])] = steps(2, 20).select("a")
    buffer["b", "c"] = torch.zeros(5, 1)
    buffer[3] = steps(1, 30)[0]
    assert buffer["a"].tolist() == [21, 10, 11, 30, 20]
    assert buffer["b", "c"].flatten().tolist() == [0, 0, 0, 30.5, 0]
    assert len(buffer) == 5
    assert buffer.extend(steps(1)).tolist() == [5]


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("transform", [None, lambda rows: rows])
def test_one_row_by_a_tensor_is_that_by_its_number(lossless, transform) -> None:
    storage = LazyTensorStorage(7, lossless=lossless)
    buffer = TensorDictReplayBuffer(storage=storage, transform=transform)
    for first_id in (1, 2):  # the second one goes round
        buffer.extend(trajectories([5], first_id=first_id))
    one = buffer[torch.tensor(3)]
    assert (one == buffer[3]).all()
    assert {leaf.shape for leaf in one.values(True, True)} == {
        leaf.shape for leaf in buffer[3].values(True, True)
    }
    buffer[torch.tensor(2)] = buffer[3].select("observation")
    assert torch.equal(buffer[2]["observation"], buffer[3]["observation"])


@pytest.mark.parametrize("dim_extend", [0, 1])
def test_one_row_of_columns_has_no_dimension(dim_extend) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=dim_extend)
    cells = torch.arange(6.0).view(2, 3)
    index = buffer.extend(TensorDict({"a": cells, "b": cells[..., None].expand(2, 3, 4)}, [2, 3]))
    row = buffer[1, 2]
    assert (row.batch_size, row["a"].shape, row["b"].shape) == ((), (), (4,))
    assert row["a"] == 5
    assert row["index"].tolist() == [1, 2] == index[-1].tolist()
    buffer[1, 2] = TensorDict({"a": torch.tensor(7.0)}, [])
    assert buffer[:]["a"].tolist() == [[0, 1, 2], [3, 4, 7]]


def test_reading_one_element_of_a_list_changes_neither_it_nor_samples() -> None:
    buffer = TensorDictReplayBuffer(storage=ListStorage(9), batch_size=6)
    mine = [TensorDict({"a": torch.tensor(float(n))}, []) for n in range(4)]
    for one in mine:
        buffer.add(one)
    assert buffer[2]["index"] == 2
    assert all(set(one.keys()) == {"a"} for one in mine)
    assert buffer.sample()["a"].shape == (6,)
    assert buffer[:]["a"].tolist() == buffer[:]["index"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [ListStorage, LazyTensorStorage])
def test_every_step_of_a_stored_trajectory_has_its_index(kind) -> None:
    buffer = TensorDictReplayBuffer(storage=kind(9))
    for _ in range(2):
        buffer.add(TensorDict({"a": torch.zeros(3, 4)}, [3]))
    assert buffer[1]["index"].tolist() == [1, 1, 1]
    assert buffer[:]["index"].tolist() == [[0, 0, 0], [1, 1, 1]]


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


def test_update_rows_leaves_out_overwritten_rows(filled, steps) -> None:
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


def test_setitem_refuses_values_that_do_not_cast_to_the_leaf(filled) -> None:
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
