"""Dumps of several files that are killed at any operation on files: one of two dumps is whole."""

from __future__ import annotations

import os
from functools import partial

import h5py
import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    StorageCheckpointerBase,
    StorageEnsemble,
    StorageEnsembleCheckpointer,
)

ON_FILES = (
    *((os, name) for name in ("open", "write", "fsync", "fdatasync", "replace", "link", "unlink")),
    *((os, name) for name in ("close", "mkdir", "rmdir", "scandir", "fstat")),
    # what HDF5 writes, it writes within these; a file that is cut there is one of any bytes
    *((h5py.File, name) for name in ("__init__", "close")),
    *((h5py.Group, name) for name in ("create_dataset", "require_group")),
    *((h5py.Dataset, name) for name in ("__setitem__", "write_direct")),
    (h5py.AttributeManager, "__setitem__"),
)
FORMER, NEWER = ([4, 3], [2, 5, 1]), ([5], [3, 3])  # lengths of the trajectories of two members


class Apart(StorageCheckpointerBase):
    """Rows in a folder of their own."""

    is_own = False


ONE_STORAGE = {
    "plain": lambda: None,
    "h5": H5StorageCheckpointer,
    "flat": FlatStorageCheckpointer,
    "apart": Apart,
}


class Case:
    """Something of two storages, or of the first one, that is dumped to a folder."""

    def __init__(self, kind, lengths):
        self.storages = [LazyTensorStorage(9) for _ in range(2)]
        buffers = [ReplayBuffer(storage=storage, batch_size=2) for storage in self.storages]
        if kind in ONE_STORAGE:
            self.storages[0].checkpointer = ONE_STORAGE[kind]()
            self.dumps, self.loads = buffers[0].dumps, buffers[0].loads
        elif kind == "members":
            self.storages[1].checkpointer = H5StorageCheckpointer()
            ensemble = ReplayBufferEnsemble(*buffers, batch_size=4)
            self.dumps, self.loads = ensemble.dumps, ensemble.loads
        else:
            self.storages[0].checkpointer = H5StorageCheckpointer()
            self.ensemble, own = StorageEnsemble(*self.storages), StorageEnsembleCheckpointer()
            self.dumps = lambda path: own.dumps(self.ensemble, path)
            self.loads = lambda path: own.loads(self.ensemble, path)
        self.read = self.storages[:1] if kind in ONE_STORAGE else self.storages
        for number, storage in enumerate(self.read if lengths else []):
            storage.extend(trajectories(lengths[number], first_id=10 * number))

    def rows(self):
        return [storage.read(torch.arange(len(storage))) for storage in self.read]


def same(one, other):
    return all(
        len(mine) == len(others) and bool((mine == others).all())
        for mine, others in zip(one, other, strict=True)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads of torch's
@pytest.mark.parametrize("kind", ["h5", "flat", "apart", "storages", "members"])
def test_kill_at_any_operation_on_files_leaves_one_of_two_dumps_whole(tmp_path, killed_at, kind):
    former, newer, found = Case(kind, FORMER), Case(kind, NEWER), Case(kind, None)
    former.dumps(tmp_path / "plain")
    plain, seen = len(list((tmp_path / "plain").rglob("*"))), []
    for call in range(600):
        folder = tmp_path / str(call)
        former.dumps(folder)
        came_so_far = killed_at(call, ON_FILES, partial(newer.dumps, folder))
        found.loads(folder)
        seen.append("former" if same(found.rows(), former.rows()) else "newer")
        assert seen[-1] == "former" or same(found.rows(), newer.rows())
        former.dumps(folder)  # and the next dump clears away what was left
        found.loads(folder)
        assert same(found.rows(), former.rows())
        assert len(list(folder.rglob("*"))) == plain
        if not came_so_far:
            break
    assert "former" in seen
    assert seen[-1] == "newer"
    assert sorted(seen) == seen  # there is one moment at which it changes
    assert len(seen) > 25  # operations were counted


class Stop(BaseException):
    """What Ctrl-C raises, but for its name."""


def stop_after(monkeypatch, call, functions):
    """Lets the call number `call` of some functions do its work, then raises `Stop`."""
    left = [call]

    def counted(function):
        def wrapped(*args, **kwargs):
            found = function(*args, **kwargs)
            left[0] -= 1
            if left[0] == -1:
                raise Stop
            return found

        return wrapped

    for owner, name in functions:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.parametrize("kind", ["plain", "h5", "flat", "apart", "storages", "members"])
def test_interrupt_after_any_operation_on_files_leaves_one_of_two_dumps_whole(
    tmp_path, monkeypatch, kind
):
    former, newer, found = Case(kind, FORMER), Case(kind, NEWER), Case(kind, None)
    names = ("write", "fsync", "fdatasync", "replace", "link", "unlink", "mkdir", "rmdir")
    operations = [(os, name) for name in names]
    seen = []
    for call in range(300):
        folder = tmp_path / str(call)
        former.dumps(folder)
        came_so_far = False
        with monkeypatch.context() as patch:
            stop_after(patch, call, operations)
            try:
                newer.dumps(folder)
            except Stop:
                came_so_far = True
        found.loads(folder)
        seen.append("former" if same(found.rows(), former.rows()) else "newer")
        assert seen[-1] == "former" or same(found.rows(), newer.rows())
        if not came_so_far:
            break
    assert seen[0] == "former"
    assert seen[-1] == "newer"
    assert sorted(seen) == seen
    assert len(seen) > 8  # operations were counted


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["h5", "storages", "members"])
def test_first_dump_that_is_killed_is_no_dump_and_the_next_one_is_whole(tmp_path, killed_at, kind):
    made, found = Case(kind, FORMER), Case(kind, None)
    assert killed_at(12, ON_FILES, partial(made.dumps, tmp_path / "dump"))
    with pytest.raises(FileNotFoundError):
        found.loads(tmp_path / "dump")
    made.dumps(tmp_path / "dump")
    found.loads(tmp_path / "dump")
    assert same(found.rows(), made.rows())


class Failing(StorageCheckpointerBase):
    """Keeps rows, and once `fails` is set, fails after its work is done."""

    is_own = False

    def __init__(self):
        super().__init__()
        self.fails = None

    def dumps(self, storage, path):
        super().dumps(storage, path)
        self._perhaps()

    def loads(self, storage, path):
        super().loads(storage, path)
        self._perhaps()

    def _perhaps(self):
        if self.fails is not None:
            raise self.fails


@pytest.mark.parametrize("fails", [OSError("disk"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("member", [0, 1])
def test_a_load_that_fails_leaves_every_storage_as_before(tmp_path, fails, member):
    one, two = Case("storages", FORMER), Case("storages", NEWER)
    two.storages[0].extend(trajectories([7], first_id=77))  # beyond the end of the ring
    for case in (one, two):
        case.storages[member].checkpointer = Failing()
    one.dumps(tmp_path)
    before = two.rows()
    windows = [storage.ring.window() for storage in two.storages]
    two.storages[member].checkpointer.fails = fails
    with pytest.raises(type(fails)):
        two.loads(tmp_path)
    assert same(two.rows(), before)
    assert [storage.ring.window() for storage in two.storages] == windows
    assert (
        two.storages[0].extend(trajectories([1], first_id=5)).numbers.start
        == windows[0].first[0] + windows[0].counts[0]
    )
    two.storages[member].checkpointer.fails = None
    two.loads(tmp_path)
    assert same(two.rows(), one.rows())


@pytest.mark.parametrize("member", [0, 1])
def test_a_dump_that_fails_leaves_the_former_one_and_no_folder(tmp_path, member):
    one, two = Case("storages", FORMER), Case("storages", None)
    one.dumps(tmp_path)
    entries = sorted(tmp_path.rglob("*"))
    one.storages[member].checkpointer = Failing()
    one.storages[member].checkpointer.fails = OSError("disk")
    with pytest.raises(OSError, match="disk"):
        one.dumps(tmp_path)
    assert sorted(tmp_path.rglob("*")) == entries
    two.loads(tmp_path)
    assert same(two.rows(), one.rows())


def test_dumps_of_ensembles_to_one_folder_at_a_time_exclude_each_other(tmp_path):
    one, other = Case("storages", FORMER), Case("storages", NEWER)

    class Meanwhile(Apart):
        def dumps(self, storage, path):
            with pytest.raises(BlockingIOError, match="another dump"):
                other.dumps(tmp_path)
            super().dumps(storage, path)

    one.storages[1].checkpointer = Meanwhile()
    one.dumps(tmp_path)
    found = Case("storages", None)
    found.storages[1].checkpointer = Meanwhile()
    found.loads(tmp_path)
    assert same(found.rows(), one.rows())


def test_an_ensemble_that_refuses_its_own_state_keeps_that_of_before(tmp_path):
    one, two = (
        ReplayBufferEnsemble(
            *(ReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2)), batch_size=4, **parts
        )
        for parts in ({"p": [1, 2], "generator": torch.Generator()}, {})
    )
    for ensemble in (one, two):
        for buffer in ensemble:
            buffer.extend(trajectories([3]))
    state = one.state_dict()
    state["rng"] = "no state of a generator"
    state["batch_size"] = 2
    with pytest.raises(TypeError):
        two.load_state_dict(state)
    assert (two.generator, two.batch_size) == (None, 4)
    assert two.sampler.state_dict() == ReplayBufferEnsemble(*two, batch_size=4).sampler.state_dict()
