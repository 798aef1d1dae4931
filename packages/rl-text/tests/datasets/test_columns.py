"""Arrays in mapped files."""

import json
import pickle

import numpy as np
import pytest

from rl_text.datasets.columns import read_columns, write_columns

ARRAYS = {"a": np.arange(5, dtype=np.int32), "b": np.array([True, False]), "c": np.zeros(0)}


def test_arrays_come_back_mapped(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {"n": 3})
    arrays, about = read_columns(tmp_path / "k")
    assert about == {"n": 3}
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert isinstance(arrays["a"], np.memmap)


def test_changes_of_mapped_arrays_do_not_reach_the_files(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {})
    read_columns(tmp_path / "k")[0]["a"][:] = 9
    np.testing.assert_array_equal(read_columns(tmp_path / "k")[0]["a"], ARRAYS["a"])


def test_what_is_not_there_or_of_another_format_is_not_read(tmp_path):
    assert read_columns(tmp_path / "k") is None
    write_columns(tmp_path / "k", ARRAYS, {})
    manifest = json.loads((tmp_path / "k" / "manifest.json").read_text())
    (tmp_path / "k" / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    assert read_columns(tmp_path / "k") is None


def test_files_that_were_cut_are_refused(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {})
    (tmp_path / "k" / "a.bin").write_bytes(b"\0" * 19)
    with pytest.raises(ValueError, match=r"a\.bin: expected 20 bytes, found 19"):
        read_columns(tmp_path / "k")


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    write_columns(tmp_path / "k", {"a": np.zeros(8, np.uint8)}, {})
    manifest = json.loads((tmp_path / "k" / "manifest.json").read_text())
    manifest["columns"]["a"] = {"dtype": "|O", "shape": [1]}
    (tmp_path / "k" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "k" / "a.bin").write_bytes(pickle.dumps([1])[:8])
    with pytest.raises(ValueError, match="damaged"):
        read_columns(tmp_path / "k")


def test_second_writer_leaves_what_the_first_has_written(tmp_path):
    write_columns(tmp_path / "k", ARRAYS, {"n": 1})
    write_columns(tmp_path / "k", ARRAYS, {"n": 2})
    assert read_columns(tmp_path / "k")[1] == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["k"]
