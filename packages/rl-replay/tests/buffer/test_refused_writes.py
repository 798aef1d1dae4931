"""Writes that a buffer refuses change nothing."""

from __future__ import annotations

import os

import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def test_tensordict_buffers_take_tensordicts_and_dicts_alone() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    for write in (buffer.add, buffer.extend):
        with pytest.raises(TypeError, match="a tensordict or a dict of arrays, got Tensor"):
            write(torch.ones(3))
    assert isinstance(buffer.writer, TensorDictRoundRobinWriter)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda b, steps: b.extend(steps(10)), ValueError, "10 rows do not fit a storage of 9"),
        (lambda b, steps: b.extend(steps(0)), ValueError, "nothing to store"),
        (lambda b, steps: b.extend([]), ValueError, "empty list"),
        (lambda b, steps: b.extend(steps(2).select("a")), KeyError, "is missing"),
        (lambda b, steps: b.extend(steps(2).set("d", torch.ones(2))), KeyError, "no place for"),
        (
            lambda b, steps: b.extend(steps(2).set("a", torch.ones(2))),
            TypeError,
            "expected torch.int64",
        ),
        (
            lambda b, steps: b.extend(steps(2).set("a", torch.ones(2, 3).long())),
            ValueError,
            "shape",
        ),
        (lambda b, steps: b.extend(torch.ones(2)), TypeError, "holds tensordict rows"),
        (lambda b, steps: b.add(steps(1)[0].set("d", torch.ones(()))), KeyError, "no place for"),
        (lambda b, steps: b.add(steps(1)[0].select("a")), KeyError, "is missing"),
        (lambda b, steps: b.add(steps(2)), ValueError, "expected one element"),
        (lambda b, steps: b.__setitem__("d", torch.ones(5)), KeyError, "no leaf"),
        (lambda b, steps: b.__setitem__(0, TensorDict({"d": torch.ones(())})), KeyError, "no leaf"),
        (lambda b, steps: b["d"], KeyError, "'d'"),
        (lambda b, steps: b.sample(), ValueError, "Give batch_size"),
        (lambda b, steps: next(iter(b)), ValueError, "Give batch_size"),
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
def test_refused_write_changes_nothing(write, error, message, steps) -> None:
    for storage in (LazyTensorStorage(9), LazyTensorStorage(9, lossless=["a"])):
        buffer = ReplayBuffer(storage=storage)
        buffer.extend(steps(9))  # full, so that room for a refused write would cost rows
        before, window = buffer[:].clone(), buffer.storage.ring.window()
        with pytest.raises(error, match=message):
            write(buffer, steps)
        assert buffer.storage.ring.window() == window
        assert buffer[:]["a"].tolist() == before["a"].tolist()
        assert buffer.extend(steps(1)).tolist() == [0]


def test_storage_stays_open_after_a_first_batch_that_does_not_fit(steps) -> None:
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


def test_add_names_the_tensordict_to_wrap_a_row_in() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    row = (torch.zeros(2),)
    with pytest.raises(TypeError, match=r"got tuple: "):
        buffer.add(row)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got tuple: "):
        buffer.extend(row)  # type: ignore[arg-type]
