from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rl_replay import ListStorage
from rl_trees.map.dump import read_dump, write_dump


def test_a_failed_dump_leaves_the_one_that_is_there(tmp_path):
    write_dump(tmp_path, "k", {"a": 1}, {"x": np.arange(3)}, None)
    storage = ListStorage(3)
    storage.extend([object()])
    with pytest.raises(NotImplementedError):
        write_dump(tmp_path, "k", {"a": 2}, {"x": np.arange(4)}, storage)
    dump = read_dump(tmp_path, "k")
    assert dump.document["a"] == 1
    assert dump.arrays["x"].tolist() == [0, 1, 2]
    assert dump.rows is None
    assert len([*tmp_path.iterdir()]) == 2


def test_an_interrupt_behind_the_last_step_leaves_the_new_dump(tmp_path, monkeypatch):
    write_dump(tmp_path, "k", {"a": 1}, {"x": np.arange(3)}, None)
    replace = Path.replace

    def interrupted(self, target):
        replace(self, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_dump(tmp_path, "k", {"a": 2}, {"x": np.arange(4)}, None)
    dump = read_dump(tmp_path, "k")
    assert dump.document["a"] == 2
    assert dump.arrays["x"].tolist() == [0, 1, 2, 3]


def test_pickles_and_other_kinds_are_refused(tmp_path):
    write_dump(tmp_path, "k", {}, {"x": np.arange(3)}, None)
    with pytest.raises(ValueError, match="holds 'k', and 'other' is wanted"):
        read_dump(tmp_path, "other")
    (array,) = tmp_path.glob("data-*/x.npy")
    np.save(array, np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="is damaged, or missing"):
        read_dump(tmp_path, "k")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "../x"}, "it names no folder of data"),
        ({"arrays": ["../x"]}, "is no name of an array"),
        ({"arrays": ["y"]}, "is damaged, or missing"),
        ("{", "is damaged"),
        ([], "holds"),
    ],
)
def test_altered_documents_are_refused(tmp_path, change, message):
    write_dump(tmp_path, "k", {}, {"x": np.arange(3)}, None)
    path = tmp_path / "document.json"
    document = json.loads(path.read_text())
    changed = document | change if isinstance(change, dict) else change
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(ValueError, match=message):
        read_dump(tmp_path, "k")
