"""Rows that are written one at a time, whatever their leaves are."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from tensordict import MemoryMappedTensor, TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
)
from rl_replay.data.dicts import DictReader
from rl_replay.data.staged_row import Readers, copy_each, copy_one_by_one
from rl_replay.data.structure import Structure
from rl_replay.storages.row_store import PlainFewRows
from rl_slabs import Rows, RowSchema
from rl_slabs.dtypes import CARRIERS
from rl_slabs.rows.tensordict_leaves import TensordictReader


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", list(CARRIERS))
def test_one_row_of_any_dtype_is_written_as_a_batch_of_one_is(dtype: torch.dtype) -> None:
    leaf = torch.arange(6, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)[:3]
    if dtype is torch.bool:
        leaf = torch.tensor([True, False, True])
    row = TensorDict({"a": leaf, "b": {"c": leaf[0]}})
    storage = LazyTensorStorage(4)
    storage.add(row)
    storage.add(row)
    found = storage.read(torch.tensor([0, 1]))
    for key in ("a", ("b", "c")):
        both = found[key].reshape(2, -1).contiguous().view(torch.uint8)
        assert torch.equal(both[0], both[1])
        assert torch.equal(both[1].reshape(-1), row[key].reshape(-1).view(torch.uint8))


def test_rows_with_leaves_of_every_size_are_written_one_by_one() -> None:
    frames = torch.randint(255, (3, 5, 7, 11), dtype=torch.uint8)
    rows = TensorDict({"frame": frames, "action": torch.rand(3, 2)}, [3])
    storage = LazyTensorStorage(4)
    storage.extend(rows[:1])
    storage.add(rows[1])
    storage.add(rows[2])
    assert (storage.read(torch.arange(3)) == rows).all()


def test_a_row_with_a_gradient_is_stored_and_then_let_go() -> None:
    storage = LazyTensorStorage(4)
    storage.extend(TensorDict({"a": torch.zeros(1, 3)}, [1]))
    leaf = torch.ones(3, requires_grad=True)
    storage.add(TensorDict({"a": leaf}))
    gone = weakref.ref(leaf)
    del leaf
    assert gone() is None
    assert torch.equal(storage.read(torch.tensor([1]))["a"], torch.ones(1, 3))


@pytest.mark.parametrize("first", [True, False])
def test_rows_come_in_and_out_of_inference_mode(first: bool) -> None:
    row = TensorDict({"a": torch.ones(3)})
    schema = RowSchema({"a": (torch.float32, (3,))})
    dicts = DictReader(schema, Structure("tensordict"))
    readers = Readers(TensordictReader(schema), dicts)
    with torch.inference_mode(first):
        one_row = PlainFewRows(Rows.zeros(schema, 2), readers)
    with torch.inference_mode(not first):
        found = one_row.take(row)
    assert found is not None
    assert found["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("leaf", "error"),
    [
        (torch.ones(3).to_sparse(), TypeError),
        (torch.ones(3, dtype=torch.float64), TypeError),
        (torch.ones(4), ValueError),
    ],
)
def test_a_row_that_does_not_fit_changes_nothing(leaf: torch.Tensor, error: type) -> None:
    storage = LazyTensorStorage(2)
    rows = TensorDict({"a": torch.rand(2, 3), "b": torch.rand(2, 1)}, [2])
    storage.extend(rows)
    with pytest.raises(error):
        storage.add(TensorDict({"b": torch.zeros(1), "a": leaf}))
    assert (storage.read(torch.arange(2)) == rows).all()
    storage.add(rows[1])
    assert (storage.read(torch.tensor([0])) == rows[1:]).all()


def test_leaves_are_copied_alike_with_and_without_one_call_for_all() -> None:
    sources = [torch.rand(3), torch.tensor(7), torch.ones(2, dtype=torch.bool)]
    once, each = ([torch.zeros_like(leaf) for leaf in sources] for _ in range(2))
    copy_each(once, sources)
    copy_one_by_one(each, sources)
    for one, other, source in zip(once, each, sources, strict=True):
        assert torch.equal(one, source)
        assert torch.equal(other, source)


@pytest.mark.parametrize("gone", [None, "traj_step", "traj_ids"])
@pytest.mark.parametrize("sizes", [(5, 1, 9, 3), (300, 700, 40, 650)])
def test_rows_that_are_taken_apart_at_once_are_stored_as_others_are(gone, sizes) -> None:
    batch = trajectories([3, 1, 8] * (sum(sizes) // 12 + 1), first_id=7)
    if gone is not None:
        batch = batch.exclude(("collector", gone))
    quick, slow = (LazyTensorStorage(1000) for _ in range(2))
    for part in batch[: sum(sizes)].split(list(sizes)):
        first, second = quick.extend(part), slow.extend(part)
        assert first.numbers == second.numbers
        assert quick.session.table.readers is not None
        slow.session.table.readers = None  # from here on it takes the long way
    rows = torch.arange(len(quick))
    assert len(quick) == len(slow) == min(1000, sum(sizes))
    assert (quick.read(rows) == slow.read(rows)).all()
    assert quick.back.tolist() == slow.back.tolist()
    assert quick.trajectories().lengths().tolist() == slow.trajectories().lengths().tolist()


def test_a_row_with_a_gradient_or_of_a_subclass_is_stored_too(tmp_path: Path) -> None:
    storage = LazyTensorStorage(4)
    plain = torch.ones(3)
    mapped = MemoryMappedTensor.from_tensor(plain, filename=str(tmp_path / "leaf"))
    for leaf in (plain, torch.ones(3, requires_grad=True), mapped):
        storage.add(TensorDict({"a": leaf}))
    assert storage.read(torch.arange(3))["a"].sum() == 9
