"""Dumps that somebody made to look like ours: the checksums are right, the contents are not."""

from __future__ import annotations

import json
import os

import pytest
import torch
from tensordict import TensorDict

from rl_layout import Nested2TED, TED2Nested
from rl_layout.testing import trajectories
from rl_replay import LazyTensorStorage, ReplayBuffer
from rl_replay.checkpoint import dump, load
from rl_replay.checkpoint.manifest import MANIFEST, sealed


def filled(count=7):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(TensorDict(a=torch.arange(count), b=torch.ones(count, 300), batch_size=[count]))
    return buffer


def change(folder, alter):
    """Alter the manifest of a dump, and seal it again."""
    head = json.loads((folder / MANIFEST).read_bytes().rpartition(b"\n")[0])
    alter(head)
    (folder / MANIFEST).write_bytes(sealed(head))
    return head


def part(name, **changes):
    def alter(head):
        found = head["parts"][f"storage/{name}"]
        assert set(changes) <= set(found)
        found.update(changes)

    return alter


def data(**changes):
    return lambda head: head["data"].update(changes)


PACKED = "store/rows/packed"
ALTERED = {
    "data elsewhere": data(file="/etc/passwd"),
    "data above the folder": data(file="../data-00"),
    "the manifest as data": data(file="manifest.json"),
    "data without a name": data(file=None),
    "data of a negative size": data(bytes=-1),
    "no data": lambda head: head.pop("data"),
    "no parts": lambda head: head.pop("parts"),
    "no layout": lambda head: head.pop("layout"),
    "no byte order": lambda head: head.pop("byteorder"),
    "a part that is a number": lambda head: head["parts"].update(more=3),
    "a part within a part": lambda head: head["parts"].update(
        {"transform": {"plain": 1}, "transform/x": {"plain": 1}}
    ),
    "a negative size": part(PACKED, bytes=-8),
    "a huge size": part(PACKED, bytes=1 << 61),
    "a negative offset": part(PACKED, offset=-4096),
    "a huge offset": part(PACKED, offset=1 << 61),
    "a negative shape": part(PACKED, shape=[-7, -1]),
    "a huge shape": part(PACKED, shape=[1 << 60, 1]),
    "another shape": part(PACKED, shape=[8, 1]),
    "a shape of words": part(PACKED, shape=["seven"]),
    "a dtype that is none": part(PACKED, dtype="Module"),
    "a checksum that is none": part(PACKED, crc32="0"),
    "a negative count": part("count", plain=-7),
    "another count": part("count", plain=6),
    "a count that is none": part("count", plain=[7]),
    "a huge count of a lane": part("counts", plain=[1 << 60]),
    "a negative count of a lane": part("counts", plain=[-7]),
    "more rows than fit": part("counts", plain=[11]),
    "a negative first row": part("first", plain=[-3]),
    "a huge first row": part("first", plain=[1 << 62]),
    "no lane": part("first", plain=[]),
    "a floor beyond all rows": part("floor", plain=[1 << 62]),
    "no columns": part("columns", plain=[0]),
    "negative columns": part("columns", plain=[-1, -1]),
    "another capacity": part("capacity", plain=6),
    "a negative capacity": part("capacity", plain=-10),
    "a form that is none": part("structure/form", plain="nothing"),
    "fields that are none": part("schema/fields", plain=[{"path": ["a"]}]),
}


@pytest.mark.parametrize("kind", ALTERED)
def test_altered_manifest_is_refused_and_changes_nothing(tmp_path, kind):
    filled().dumps(tmp_path)
    change(tmp_path, ALTERED[kind])
    buffer = filled(3)
    with pytest.raises(ValueError, match=r"\w{4}"):
        buffer.loads(tmp_path)
    assert buffer[:]["a"].tolist() == [0, 1, 2]
    buffer.extend(filled(2)[:])
    assert len(buffer) == 5


def test_link_or_pipe_for_a_manifest_or_data_is_refused_at_once(tmp_path):
    folder = tmp_path / "dump"
    dump(folder, {"rows": torch.arange(5)})
    name = folder / change(folder, lambda head: None)["data"]["file"]
    for victim in (name, folder / MANIFEST):
        kept = victim.read_bytes()
        (tmp_path / "elsewhere").write_bytes(kept)
        victim.unlink()
        victim.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ValueError, match="is a symbolic link"):
            load(folder)
        victim.unlink()
        os.mkfifo(victim)
        with pytest.raises(ValueError, match="no regular file"):
            load(folder)
        victim.unlink()
        victim.write_bytes(kept)
    assert load(folder)["rows"].tolist() == [0, 1, 2, 3, 4]


def test_manifest_is_read_up_to_a_limit(tmp_path):
    with (tmp_path / MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="no manifest of a dump"):
        load(tmp_path)


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe", b"NaN"])
def test_manifest_that_is_no_json_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_bytes(text)
    with pytest.raises(ValueError, match="no manifest of a dump"):
        load(tmp_path)


HOOKS = (TED2Nested(), Nested2TED())
RING = {
    "a row that is a word": {"first": ["0"]},
    "a negative row": {"first": [-5]},
    "a huge row": {"first": [1 << 62]},
    "a row beyond all words": {"first": [1 << 80]},
    "half a row": {"first": [1.5]},
    "no rows": {"first": None},
    "no counts": {"counts": None},
    "a capacity that is a word": {"capacity": "10"},
}
CHANGED = {
    "other batch sizes": {"batch_sizes": [[[], [9]]]},
    "batch sizes of nothing": {"batch_sizes": [[["nothing"], [1]]]},
    "a number of batch sizes": {"batch_sizes": 3},
    "jagged leaves in a list": {"jagged": [1]},
    "offsets that are words": {"jagged": {"0": {"path": ["steps", "a"], "offsets": "words"}}},
    "offsets of nothing": {"jagged": {"0": {"path": ["nothing"], "offsets": torch.arange(3)}}},
    "rows in a list": {"rows": [1]},
}


def with_hooks(storage, rows):
    buffer = ReplayBuffer(storage=storage)
    buffer.register_save_hook(HOOKS[0])
    buffer.register_load_hook(HOOKS[1])
    buffer.extend(trajectories([rows]))
    return buffer


@pytest.mark.parametrize(
    ("group", "changes"),
    [("ring", RING[kind]) for kind in RING] + [("changed", CHANGED[kind]) for kind in CHANGED],
    ids=[*RING, *CHANGED],
)
def test_altered_rows_of_hooks_are_refused_and_change_nothing(tmp_path, group, changes):
    one, two = (with_hooks(LazyTensorStorage(10), rows) for rows in (5, 3))
    one.dumps(tmp_path / "one")
    parts = load(tmp_path / "one")
    parts[group] = parts[group] | changes
    dump(tmp_path / "two", parts)
    before = two[:].clone()
    with pytest.raises(ValueError, match=r"\w{4}"):
        two.loads(tmp_path / "two")
    assert (two[:] == before).all()
    two.extend(trajectories([2]))
    assert len(two) == 5


def test_rows_of_hooks_that_do_not_fit_change_nothing(tmp_path):
    one = ReplayBuffer(storage=LazyTensorStorage(10))
    one.register_save_hook(lambda rows: rows.exclude("observation"))
    one.extend(trajectories([5]))
    one.dumps(tmp_path)
    two = ReplayBuffer(storage=LazyTensorStorage(10, lossless=["observation"]))
    two.register_load_hook(lambda rows: rows)
    two.extend(trajectories([3]))
    before = two[:].clone()
    with pytest.raises(KeyError, match="observation"):
        two.loads(tmp_path)
    assert (two[:] == before).all()
