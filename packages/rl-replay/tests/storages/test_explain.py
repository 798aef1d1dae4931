"""What a storage says of itself."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, ReplayBuffer
from rl_replay.lossless.rows import LosslessRows, warn_of_few_links
from rl_slabs import RowSchema


def test_an_unwritten_storage_says_so() -> None:
    lines = LazyTensorStorage(9).explain()
    assert lines == ["LazyTensorStorage: 0 of 9 rows, nothing stored yet"]


@pytest.mark.parametrize("lossless", [False, True])
def test_after_a_million_rows_large_writes_are_compiled(lossless: bool) -> None:
    pytest.importorskip("llvmlite")
    count = 1 << 17
    seen = torch.arange(count + 1.0).unsqueeze(-1)
    after = {"observation": seen[1:], "done": torch.zeros(count, 1, dtype=torch.bool)}
    step = {"observation": seen[:-1], "next": after}
    buffer = ReplayBuffer(storage=LazyTensorStorage(count, lossless=lossless))
    said = []
    for _ in range(10):
        buffer.extend(TensorDict(step, [count], names=["time"]))
        said.append("large writes are packed by a compiled loop" in buffer.explain())
    assert said == [False] * 8 + [True] * 2
    assert buffer[:]["next", "observation"].equal(seen[1:])


def test_lossless_rows_without_rows_warn_of_nothing() -> None:
    store = LosslessRows.zeros(RowSchema({"a": (torch.bool, ())}), 5, keys=["a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_few_links(store, 0)


def test_unlinked_lossless_rows_warn() -> None:
    store = LosslessRows.zeros(RowSchema({"a": (torch.bool, ())}), 5, keys=["a"])
    store.expect(misses=True, reach=1)
    with pytest.warns(UserWarning, match="only 0% of 4 rows"):
        warn_of_few_links(store, 4)
