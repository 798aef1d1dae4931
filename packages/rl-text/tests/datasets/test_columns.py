"""Arrays in a mapped file."""

import numpy as np
import pytest
import torch

from rl_replay.checkpoint import Chunks, dump
from rl_text.datasets.columns import read_columns, write_columns

ARRAYS = {"a": np.arange(5, dtype=np.int32), "b": np.array([True, False]), "c": np.zeros(0)}


def test_arrays_come_back_mapped(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {"n": 3, "of": {}})
    arrays, about = read_columns(tmp_path / "k")
    assert about == {"n": 3, "of": {}}
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(tmp_path / "k") in maps.read()


def test_changes_of_mapped_arrays_do_not_reach_the_files(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {})
    read_columns(tmp_path / "k")[0]["a"][:] = 9
    np.testing.assert_array_equal(read_columns(tmp_path / "k")[0]["a"], ARRAYS["a"])


def test_what_is_not_there_is_not_read(tmp_path):
    assert read_columns(tmp_path / "k") is None
    (tmp_path / "k").mkdir()
    assert read_columns(tmp_path / "k") is None


def test_files_that_were_cut_or_altered_are_refused(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {})
    (data,) = (tmp_path / "k").glob("data-*")
    content = data.read_bytes()
    data.write_bytes(b"\1" + content[1:])
    with pytest.raises(ValueError, match="checksum of part 'columns/a' differs"):
        read_columns(tmp_path / "k")
    data.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"expected {len(content)} bytes, got {len(content) - 1}"):
        read_columns(tmp_path / "k")


def test_arrays_of_objects_are_never_pickled(tmp_path):
    with pytest.raises(TypeError, match=r"numpy\.object_"):
        write_columns(tmp_path / "k", {"a": np.array([object()])}, {})
    assert read_columns(tmp_path / "k") is None


def test_second_writer_leaves_what_the_first_has_written(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {"n": 1})
    write_columns(tmp_path / "k", ARRAYS, {"n": 2})
    assert read_columns(tmp_path / "k")[1] == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_writer_leaves_what_another_is_writing(tmp_path):
    found = []

    def pieces():
        write_columns(tmp_path / "k", ARRAYS, {"n": 2})
        found.append(read_columns(tmp_path / "k"))
        yield torch.arange(3)

    dump(tmp_path / "k", {"about": [{"n": 1}], "columns": {"a": Chunks(torch.int64, (3,), pieces)}})
    arrays, about = read_columns(tmp_path / "k")
    assert found == [None]
    assert about == {"n": 1}
    assert arrays["a"].tolist() == [0, 1, 2]
