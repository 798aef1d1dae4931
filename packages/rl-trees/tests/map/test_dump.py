from __future__ import annotations

import numpy as np
import pytest

from rl_replay import ListStorage
from rl_replay.checkpoint import dump
from rl_trees.map.dump import read_dump, write_dump


def test_a_failed_dump_leaves_the_one_that_is_there(tmp_path):
    write_dump(tmp_path, "k", {"a": {"b": 1}}, {"x": np.arange(3)}, None)
    storage = ListStorage(3)
    storage.extend([object()])
    with pytest.raises(NotImplementedError):
        write_dump(tmp_path, "k", {"a": 2}, {"x": np.arange(4)}, storage)
    found = read_dump(tmp_path, "k")
    assert found.document == {"a": {"b": 1}}
    assert found.arrays["x"].tolist() == [0, 1, 2]
    assert found.rows is None
    assert len([*tmp_path.iterdir()]) == 2


def test_dumps_of_others_and_altered_ones_are_refused(tmp_path):
    write_dump(tmp_path, "k", {}, {"x": np.arange(3)}, None)
    with pytest.raises(ValueError, match="holds 'k', and 'other' is wanted"):
        read_dump(tmp_path, "other")
    dump(tmp_path / "foreign", {"count": 3})
    with pytest.raises(ValueError, match="holds None, and 'k' is wanted"):
        read_dump(tmp_path / "foreign", "k")
    (data,) = tmp_path.glob("data-*")
    data.write_bytes(data.read_bytes()[:-1] + b"\1")
    with pytest.raises(ValueError, match="checksum of part 'arrays/x' differs"):
        read_dump(tmp_path, "k")


def test_a_folder_that_is_no_name_is_named():
    with pytest.raises(TypeError, match="path is the name of a folder, got 3"):
        write_dump(3, "k", {}, {"x": np.arange(3)}, None)
    with pytest.raises(TypeError, match="path is the name of a folder, got None"):
        read_dump(None, "k")
