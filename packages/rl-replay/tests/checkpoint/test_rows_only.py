"""Dumps whose rows alone are loaded."""

import pytest
import torch

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
)

STORAGES = {
    "memory": lambda: LazyTensorStorage(23),
    "file": lambda: LazyMemmapStorage(23),
    "lossless": lambda: LazyTensorStorage(23, lossless=True),
    "lossless file": lambda: LazyMemmapStorage(23, lossless=True),
    "columns": lambda: LazyTensorStorage(24, ndim=2),
    "lossless columns": lambda: LazyTensorStorage(24, ndim=2, lossless=True),
}


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_only_loads_into_a_buffer_of_other_parts(tmp_path, storage, batch, buffer):
    kept = ReplayBuffer(storage=STORAGES[storage]())
    rows = batch([4, 3, 5])
    kept.extend(rows.reshape(4, 3) if kept.storage.ndim == 2 else rows)
    kept.dumps(tmp_path / "rows")
    other = buffer(STORAGES[storage](), SliceSampler(num_slices=2))
    with pytest.raises(ValueError, match=r"loads\(path, rows_only=True\)"):
        other.loads(tmp_path / "rows")
    assert len(other) == 0
    seed = other.state_dict()["rng"]
    other.loads(tmp_path / "rows", rows_only=True)
    assert (other[:].exclude("index") == kept[:]).all()
    assert torch.equal(other.state_dict()["rng"], seed)
    sample = other.sample()  # of the batch size that this buffer was made with, in slices
    assert 0 < len(sample) <= 6
    assert len(sample["collector", "slice_ids"].unique()) == 2


def test_rows_only_begins_an_epoch(tmp_path, batch, buffer):
    kept = ReplayBuffer(storage=LazyTensorStorage(23))
    kept.extend(batch([4, 3, 5]))
    kept.dumps(tmp_path / "rows")
    other = buffer(LazyTensorStorage(23), SamplerWithoutReplacement())
    other.extend(batch([9]))
    other.sample()
    other.loads(tmp_path / "rows", rows_only=True)
    seen = torch.cat([other.sample()["index"] for _ in range(2)])
    assert sorted(seen.tolist()) == list(range(12))
    other.loads(tmp_path / "rows", rows_only=True)
    other.extend(batch([5], 60))
    assert len(other) == 17


def test_rows_only_that_do_not_fit_change_nothing(tmp_path, batch, buffer):
    kept = ReplayBuffer(storage=LazyTensorStorage(23))
    kept.extend(batch([4, 3, 5]))
    kept.dumps(tmp_path / "rows")
    small = buffer(LazyTensorStorage(7), SamplerWithoutReplacement())
    small.extend(batch([6]))
    before = small[:].clone()
    drawn = small.sample()["index"]
    assert len(drawn) == 6
    with pytest.raises(ValueError, match="7"):
        small.loads(tmp_path / "rows", rows_only=True)
    assert (small[:] == before).all()
