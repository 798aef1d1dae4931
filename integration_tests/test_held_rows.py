"""Rows that a transform of a buffer holds back are in its dump, whichever way they are held."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl_layout.testing import EndKind, environments
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import MultiStepTransform


def made(*, columns: bool) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=2 if columns else 1), batch_size=8
    )
    buffer.append_transform(MultiStepTransform(3, 0.9, columns=columns))
    return buffer


@pytest.mark.parametrize("columns", [False, True])
def test_rows_held_back_are_in_a_dump(tmp_path: Path, columns: bool) -> None:
    batch = environments(3, 14, [4, 9], [EndKind.TERMINATED, EndKind.TRUNCATED])
    first, second = batch[:, :7], batch[:, 7:]
    whole = made(columns=columns)
    whole.dumps(tmp_path / "none")
    for part in (first, second):
        whole.extend(part if columns else part.reshape(-1))
    saved, other = made(columns=columns), made(columns=columns)
    saved.extend(first if columns else first.reshape(-1))
    saved.dumps(tmp_path / "some")
    other.loads(tmp_path / "some")
    other.extend(second if columns else second.reshape(-1))
    assert len(other) == len(whole)
    assert torch.equal(other[:]["next", "reward"], whole[:]["next", "reward"])
