"""Dumps of checkpointers that are damaged, missing or of another kind."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyTensorStorage,
    ListStorage,
    ListStorageCheckpointer,
    NestedStorageCheckpointer,
    ReplayBuffer,
    StorageCheckpointerBase,
    StorageEnsemble,
    StorageEnsembleCheckpointer,
    TensorStorageCheckpointer,
)
from rl_replay.checkpoint import dump

FORMS = {
    "tensor": TensorStorageCheckpointer,
    "flat": FlatStorageCheckpointer,
    "nested": NestedStorageCheckpointer,
    "h5": H5StorageCheckpointer,
    "gzip": lambda: H5StorageCheckpointer(compression="gzip", h5_kwargs={"shuffle": True}),
    "apart": lambda: FlatStorageCheckpointer(done_keys=["done"], reward_keys=["observation"]),
}


def damaged(path, change):
    (name,) = path.glob("rows-*.h5")
    raw = bytearray(name.read_bytes())
    name.write_bytes(change(raw))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[: len(raw) // 2], "truncated or appended to"),
        (lambda raw: b"", "truncated or appended to"),
        (lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:], "altered"),
        (lambda raw: bytes(len(raw)), "altered"),
    ],
    ids=["half", "nothing", "one bit", "zeros"],
)
def test_a_file_that_is_not_whole_is_refused_and_nothing_is_lost(tmp_path, change, message, buffer):
    one, two = buffer("h5"), buffer("h5")
    one.extend(trajectories([5]))
    two.extend(trajectories([3], first_id=70))
    before = two[:].clone()
    one.dumps(tmp_path)
    damaged(tmp_path, change)
    for load in (two.loads, lambda path: two.storage.checkpointer.loads(two.storage, path)):
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
        assert (two[:] == before).all()


def test_a_file_that_is_missing_is_refused(tmp_path, buffer):
    one = buffer("h5")
    one.extend(trajectories([5]))
    one.dumps(tmp_path)
    (name,) = tmp_path.glob("rows-*.h5")
    name.unlink()
    with pytest.raises(ValueError, match="is missing"):
        one.loads(tmp_path)
    assert len(one) == 5


def test_a_folder_with_a_file_of_others_is_no_dump(tmp_path, buffer):
    with h5py.File(tmp_path / "checkpoint.h5", "w") as file:
        file["observation"] = np.zeros(3)
    two = buffer("h5")
    two.extend(trajectories([3]))
    with pytest.raises(FileNotFoundError, match="holds no dump"):
        two.loads(tmp_path)
    assert len(two) == 3


def test_a_dump_of_another_kind_is_refused(tmp_path, buffer):
    ensemble = StorageEnsemble(LazyTensorStorage(5), LazyTensorStorage(5))
    StorageEnsembleCheckpointer().dumps(ensemble, tmp_path)
    two = buffer("flat")
    two.extend(trajectories([3]))
    with pytest.raises(ValueError, match="without the rows of a storage"):
        two.storage.checkpointer.loads(two.storage, tmp_path)
    assert len(two) == 3
    dump(tmp_path / "other", {"a": 1})
    with pytest.raises(ValueError, match="no dump of several storages"):
        StorageEnsembleCheckpointer().loads(ensemble, tmp_path / "other")


def test_list_storages_have_a_checkpointer_that_refuses(tmp_path):
    storage = ListStorage(3)
    storage.extend(["a"])
    for call in (ListStorageCheckpointer().dumps, ListStorageCheckpointer().loads):
        with pytest.raises(NotImplementedError, match="only pickles could keep"):
            call(storage, tmp_path)


def test_what_is_no_checkpointer_is_refused():
    with pytest.raises(TypeError, match="derive from StorageCheckpointerBase"):
        LazyTensorStorage(3).checkpointer = "h5"
    assert LazyTensorStorage(3).checkpointer is None
    for name in ("a/b.h5", "", "..", "manifest.json", "data-1", "rows-1.h5"):
        with pytest.raises(ValueError, match="name of a file"):
            H5StorageCheckpointer(checkpoint_file=name)


def test_a_dump_of_a_checkpointer_of_its_own_wants_one_like_it(tmp_path):
    class Own(StorageCheckpointerBase):
        is_own = False

        def dumps(self, storage, path):
            os.makedirs(path)
            Path(path, "rows.txt").write_text(str(storage.read(torch.arange(2)).tolist()))

        def loads(self, storage, path):
            storage.empty()
            storage.extend(torch.tensor(eval(Path(path, "rows.txt").read_text())))

    one, two = (ReplayBuffer(storage=LazyTensorStorage(5)) for _ in range(2))
    one.extend(torch.tensor([3, 4]))
    one.storage.checkpointer = Own()
    one.dumps(tmp_path)
    one.dumps(tmp_path)
    with pytest.raises(ValueError, match="checkpointer of their own"):
        two.loads(tmp_path)
    two.storage.checkpointer = Own()
    two.loads(tmp_path)
    assert two[:].tolist() == [3, 4]
    assert len(list(tmp_path.glob("folder-*"))) == 1
