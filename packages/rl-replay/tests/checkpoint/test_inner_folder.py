"""Folders within a dump: what is not ours stays, and none outside is read."""

from __future__ import annotations

import json

import pytest
import torch

from rl_replay import (
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    StorageCheckpointerBase,
    StorageEnsemble,
    StorageEnsembleCheckpointer,
)
from rl_replay.checkpoint.manifest import MANIFEST, sealed


class Apart(StorageCheckpointerBase):
    """Rows in a folder of their own."""

    is_own = False


class Case:
    """One of the three that keep folders within a dump, with some rows."""

    def __init__(self, kind, rows):
        self.storages = [LazyTensorStorage(9) for _ in range(2)]
        for storage in self.storages:
            storage.extend(torch.arange(rows))
        if kind == "apart":
            self.storages[0].checkpointer = Apart()
            buffer = ReplayBuffer(storage=self.storages[0])
            self.dumps, self.loads = buffer.dumps, buffer.loads
        elif kind == "members":
            buffers = [ReplayBuffer(storage=storage, batch_size=2) for storage in self.storages]
            ensemble = ReplayBufferEnsemble(*buffers, batch_size=4)
            self.dumps, self.loads = ensemble.dumps, ensemble.loads
        else:
            ensemble, checkpointer = StorageEnsemble(*self.storages), StorageEnsembleCheckpointer()
            self.dumps = lambda path: checkpointer.dumps(ensemble, path)
            self.loads = lambda path: checkpointer.loads(ensemble, path)

    def counts(self):
        return [len(storage) for storage in self.storages]


KINDS = {"apart": "storage", "members": "members", "storages": "storages"}


@pytest.mark.parametrize("kind", KINDS)
def test_folders_and_files_of_others_stay(tmp_path, kind):
    kept = [tmp_path / f"{prefix}-backup" for prefix in ("storage", "members", "storages")]
    for folder in kept:
        folder.mkdir()
        (folder / "notes").write_text("mine")
    files = [tmp_path / "data-raw.csv", tmp_path / "rows-of-mine"]
    for file in files:
        file.write_text("mine")
    one, two = Case(kind, 4), Case(kind, 2)
    one.dumps(tmp_path)
    one.dumps(tmp_path)
    assert all((folder / "notes").read_text() == "mine" for folder in kept)
    assert all(file.read_text() == "mine" for file in files)
    assert len(list(tmp_path.glob(f"{KINDS[kind]}-*"))) == 2  # ours, and the one that stays
    two.loads(tmp_path)
    assert two.counts() == ([4, 2] if kind == "apart" else [4, 4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["..", ".", "", "elsewhere", "/tmp", None, 3, "link"])
def test_no_folder_but_one_of_the_dump_is_read(tmp_path, kind, name):
    one, two = Case(kind, 4), Case(kind, 2)
    one.dumps(tmp_path / "dump")
    (inner,) = tmp_path.glob(f"dump/{KINDS[kind]}-*")
    if name == "link":
        inner.rename(tmp_path / "elsewhere")
        inner.symlink_to(tmp_path / "elsewhere")
    else:
        head = json.loads((tmp_path / "dump" / MANIFEST).read_bytes().rpartition(b"\n")[0])
        for part in head["parts"].values():
            if part.get("plain") == inner.name:
                part["plain"] = name
        (tmp_path / "dump" / MANIFEST).write_bytes(sealed(head))
    with pytest.raises(ValueError, match="Restore it from a copy"):
        two.loads(tmp_path / "dump")
    assert two.counts() == [2, 2]


@pytest.mark.parametrize("kind", ["members", "storages"])
def test_a_member_is_not_read_through_a_link(tmp_path, kind):
    one, two = Case(kind, 4), Case(kind, 2)
    one.dumps(tmp_path / "dump")
    (member,) = tmp_path.glob(f"dump/{KINDS[kind]}-*/1")
    member.rename(tmp_path / "elsewhere")
    member.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        two.loads(tmp_path / "dump")
    assert two.counts() == [2, 2]
