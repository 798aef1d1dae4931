"""Folders within a dump: what is not ours stays, and none outside is read."""

from __future__ import annotations

import json
import os
from functools import partial

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
from rl_replay.checkpoint import Archive, Folder, dump, load
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


FORMER = {"words": ["former"]}
SYSTEM_CALLS = ("open", "write", "fsync", "replace", "unlink", "close", "mkdir", "rmdir")
KINDS = ("apart", "members", "storages")


@pytest.mark.parametrize("kind", KINDS)
def test_folders_and_files_of_others_stay(tmp_path, kind):
    kept = [tmp_path / name for name in ("folder-backup", "folder-", "data-1")]
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
    assert len(list(tmp_path.glob("folder-*"))) == 3  # ours, and the two foreign ones
    two.loads(tmp_path)
    assert two.counts() == ([4, 2] if kind == "apart" else [4, 4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("name", ["..", ".", "", "elsewhere", "/tmp", None, 3, "link"])
def test_no_folder_but_one_of_the_dump_is_read(tmp_path, kind, name, described):
    one, two = Case(kind, 4), Case(kind, 2)
    one.dumps(tmp_path / "dump")
    (inner,) = tmp_path.glob("dump/folder-*")
    if name == "link":
        inner.rename(tmp_path / "elsewhere")
        inner.symlink_to(tmp_path / "elsewhere")
    else:
        head = json.loads((tmp_path / "dump" / MANIFEST).read_bytes().rpartition(b"\n")[0])
        for part in head["parts"].values():
            if part.get("plain") == {"folder": inner.name}:
                part["plain"] = {"folder": name} if described else name
        (tmp_path / "dump" / MANIFEST).write_bytes(sealed(head))
    with pytest.raises(ValueError, match="Restore it from a copy"):
        two.loads(tmp_path / "dump")
    assert two.counts() == [2, 2]


@pytest.mark.parametrize("kind", ["members", "storages"])
def test_a_member_is_not_read_through_a_link(tmp_path, kind):
    one, two = Case(kind, 4), Case(kind, 2)
    one.dumps(tmp_path / "dump")
    (member,) = tmp_path.glob("dump/folder-*/1")
    member.rename(tmp_path / "elsewhere")
    member.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        two.loads(tmp_path / "dump")
    assert two.counts() == [2, 2]


def written(text):
    def write(folder):
        folder.mkdir()
        (folder / "text").write_text(text)

    return write


def text_of(parts):
    return parts, (parts["words"] / "text").read_text()


def test_folder_is_filled_for_the_dump_and_goes_with_it(tmp_path):
    dump(tmp_path, {"group": {"words": Folder(written("one"))}, "count": 1})
    former = load(tmp_path)["group"]["words"]
    assert former.parent == tmp_path
    dump(tmp_path, {"words": Folder(written("two"))})
    parts, text = text_of(load(tmp_path))
    assert text == "two"
    assert [name for name in os.listdir(tmp_path) if name.startswith("folder-")] == [
        parts["words"].name
    ]
    assert len(os.listdir(tmp_path)) == 3
    dump(tmp_path, FORMER)  # which has no folder
    assert len(os.listdir(tmp_path)) == 2


def test_folder_that_nothing_fills_is_empty(tmp_path):
    dump(tmp_path, {"words": Folder(lambda folder: None)})
    assert list(load(tmp_path)["words"].iterdir()) == []


def test_folder_that_fails_leaves_the_former_dump_and_no_file(tmp_path):
    dump(tmp_path, {"words": Folder(written("former"))})

    def write(folder):
        written("newer")(folder)
        with pytest.raises(BlockingIOError, match="another dump"):
            dump(tmp_path, FORMER)
        raise KeyError("gone")

    with pytest.raises(KeyError):
        dump(tmp_path, {"rows": Folder(written("too")), "words": Folder(write)})
    assert text_of(load(tmp_path))[1] == "former"
    assert len(os.listdir(tmp_path)) == 3


def test_folder_that_is_gone_is_named_by_verify(tmp_path):
    dump(tmp_path, {"words": Folder(written("one"))})
    load(tmp_path)["words"].rename(tmp_path / "elsewhere")
    with Archive(tmp_path) as archive, pytest.raises(ValueError, match="is missing"):
        archive.verify()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kill_at_any_system_call_leaves_one_of_two_folders_whole(tmp_path, killed_at):
    seen = []
    calls = [(os, name) for name in SYSTEM_CALLS]
    for call in range(150):
        folder = tmp_path / str(call)
        dump(folder, {"words": Folder(written("former"))})
        newer = {"words": Folder(written("newer"))}
        came_so_far = killed_at(call, calls, partial(dump, folder, newer))
        seen.append(text_of(load(folder))[1])
        dump(folder, FORMER)
        assert len(os.listdir(folder)) == 2
        if not came_so_far:
            break
    assert seen[0] == "former"
    assert seen[-1] == "newer"
    assert sorted(seen) == seen


@pytest.mark.parametrize("parts", [FORMER, {"words": Folder(written("newer"))}])
def test_interrupt_behind_the_last_step_leaves_the_new_dump(tmp_path, monkeypatch, parts):
    dump(tmp_path, {"words": ["before"]})
    replace = os.replace

    def interrupted(*names):
        replace(*names)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dump(tmp_path, parts)
    assert load(tmp_path)["words"] != ["before"]
