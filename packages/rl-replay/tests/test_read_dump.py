import pytest
import torch

from rl_layout import TED2Flat
from rl_layout.testing import trajectories
from rl_replay import (
    FlatStorageCheckpointer,
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
    read_dump,
)

STORAGES = {
    "memory": lambda: LazyTensorStorage(11),
    "file": lambda: LazyMemmapStorage(11),
    "lossless": lambda: LazyTensorStorage(11, lossless=True),
    "columns": lambda: LazyTensorStorage(12, ndim=2),
    "lossless columns": lambda: LazyTensorStorage(12, ndim=2, lossless=["observation"]),
}


@pytest.mark.parametrize("make", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize("times", [1, 2], ids=["partly full", "wrapped"])
def test_a_dump_is_read_into_a_buffer_of_its_own_shape(make, times, tmp_path):
    buffer = TensorDictReplayBuffer(storage=make(), sampler=SliceSampler(slice_len=2))
    for start in range(times):
        rows = trajectories([4, 2], first_id=10 * start)
        buffer.extend(rows.reshape(2, 3) if buffer.storage.ndim == 2 else rows)
    buffer.dumps(tmp_path)
    found = read_dump(tmp_path)
    assert bool(found.storage.lossless) == bool(buffer.storage.lossless)
    assert (found.storage.shape, len(found)) == (buffer.storage.shape, len(buffer))
    expected = buffer[:].exclude("index")
    assert found[:].batch_size == expected.batch_size
    assert (found[:] == expected).all()


def test_a_compact_dump_is_read_as_a_plain_one(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.storage.checkpointer = FlatStorageCheckpointer()
    buffer.extend(trajectories([4, 3]))
    buffer.dumps(tmp_path)
    assert (read_dump(tmp_path)[:] == buffer[:]).all()


def test_rows_of_any_tree_are_read(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend({"a": torch.arange(3), "b": (torch.ones(3, 2),)})
    buffer.dumps(tmp_path)
    assert read_dump(tmp_path)[:]["a"].tolist() == [0, 1, 2]


def test_the_dump_of_an_ensemble_is_read_into_an_ensemble(tmp_path):
    names = ("memory", "columns", "lossless")
    members = [TensorDictReplayBuffer(storage=STORAGES[name]()) for name in names]
    for number, rows in enumerate([trajectories([4, 2]), trajectories([3, 3]).reshape(2, 3)]):
        members[number].extend(rows)
    ReplayBufferEnsemble(*members, batch_size=6).dumps(tmp_path)
    found = read_dump(tmp_path)
    assert isinstance(found, ReplayBufferEnsemble)
    for one, other in zip(found, members[:2], strict=False):
        assert (one[:] == other[:].exclude("index")).all()
    assert [len(one.storage) for one in found] == [6, 6, 0]


def test_what_is_no_dump_or_needs_more_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no dump"):
        read_dump(tmp_path / "nowhere")
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.dumps(tmp_path / "empty")
    with pytest.raises(ValueError, match="holds no row"):
        read_dump(tmp_path / "empty")
    buffer.extend(trajectories([3, 2]))
    buffer.register_save_hook(TED2Flat())
    buffer.dumps(tmp_path / "changed")
    with pytest.raises(ValueError, match="written by save hooks"):
        read_dump(tmp_path / "changed")
    with pytest.raises(TypeError):
        read_dump(7)
