"""Datasets of many groups, read by their places in the file and by HDF5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_datasets.hdf5_file import ColumnReader, GroupReader, leaves, open_h5
from rl_datasets.plain_hdf5 import PlainHDF5

h5py = pytest.importorskip("h5py")

DTYPES = ["<f8", "<f4", "<i8", "<i4", "u1", "?", "<f2"]


def write(
    path: Path,
    lengths: list[int],
    *,
    odd: Callable[[Any], None] | None = None,
    libver: str | None = None,
    **options: Any,
) -> None:
    """A file with a group for each episode; `odd` changes the second one."""
    rng = np.random.default_rng(len(lengths))
    options = {"chunks": True, **options}
    with h5py.File(path, "w", libver=libver) as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["seed"] = number, "none"
            for place, kind in enumerate(DTYPES):
                shape = (length, *[(), (3,), (2, 5)][place % 3])
                values = rng.integers(0, 2, shape).astype(kind)
                name = f"infos/inner/{place}" if place > 4 else f"column {place}"
                group.create_dataset(name, data=values, **options)
            if odd is not None and number == 1:
                odd(group)


def read(path: Path) -> list[dict[str, Any]]:
    """All columns of all groups, the last group first."""
    with open_h5(path) as file:
        names = list(file)
        readers = {path: ColumnReader(path, one) for path, one in leaves(file[names[0]])}
        groups = GroupReader(file, path, names)
        return [groups.read(place, readers) for place in reversed(range(len(names)))]


def expected(path: Path) -> list[dict[str, Any]]:
    """The same, by h5py alone."""
    with h5py.File(path) as file:
        names = list(file)
        paths = [path for path, _ in leaves(file[names[0]])]
        return [{p: file[name]["/".join(p)][()] for p in paths} for name in reversed(names)]


def known(path: Path) -> list[bool]:
    """For each group, whether all of its columns are known without HDF5."""
    with h5py.File(path) as file:
        names = list(file)
        count = len(list(leaves(file[names[0]])))
    found = PlainHDF5(path).find(names)
    whole = len(found) == count
    return [whole and all(one.known[n] for one in found.values()) for n in range(len(names))]


def require_equal(path: Path) -> None:
    """Raises where a column differs."""
    for mine, theirs in zip(read(path), expected(path), strict=True):
        assert mine.keys() == theirs.keys()
        for key, column in theirs.items():
            assert mine[key].dtype == column.dtype
            np.testing.assert_array_equal(mine[key], column, strict=True)


@pytest.mark.parametrize("chunks", [True, (2,), (7,), (1000,)])
def test_columns_of_a_plain_file_are_known_and_those_of_h5py(tmp_path, chunks) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number, length in enumerate([9, 14, 1, 300]):
            group = file.create_group(f"episode_{number}")
            for place, kind in enumerate(DTYPES):
                inner = [(), (3,), (2, 5)][place % 3]
                values = np.arange(length * max(1, int(np.prod(inner)))).astype(kind)
                sizes = chunks if chunks is True else (*chunks, *[max(1, n - 1) for n in inner])
                options = {"chunks": sizes, "maxshape": (None, *inner)}
                group.create_dataset(f"{place}", data=values.reshape(length, *inner), **options)
    assert known(tmp_path / "a.hdf5") == [True] * 4
    require_equal(tmp_path / "a.hdf5")


def test_hundreds_of_groups_with_groups_in_them_are_known(tmp_path) -> None:
    write(tmp_path / "a.hdf5", [3 + number % 7 for number in range(700)])
    assert all(known(tmp_path / "a.hdf5"))
    require_equal(tmp_path / "a.hdf5")


def test_columns_of_later_groups_are_those_that_the_first_one_has(tmp_path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(600):
            kind = "<f4" if number < 300 else "<i4"
            values = np.arange(number, number + 3).astype(kind)
            file.create_dataset(f"episode_{number:03}/column", data=values, chunks=True)
    found = [columns["column",] for columns in read(tmp_path / "a.hdf5")]
    for number, column in enumerate(reversed(found)):
        assert column.dtype == "<f4"
        assert column.tolist() == [number, number + 1, number + 2]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9))
def test_episodes_of_any_length_are_those_of_h5py(tmp_path_factory, lengths) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.hdf5"
    write(path, lengths)
    require_equal(path)


def _renamed(group: Any) -> None:
    group["other"] = group["column 0"]
    del group["column 3"]
    group["column 3"] = np.arange(4, dtype="<i4")


def _of_another_dtype(group: Any) -> None:
    del group["column 0"]
    group.create_dataset("column 0", data=np.arange(5, dtype="<f4"), chunks=True)


def _compressed(group: Any) -> None:
    del group["column 0"]
    zeros = np.zeros(500)
    group.create_dataset("column 0", data=zeros, chunks=True, compression="gzip")


def _extended(group: Any) -> None:
    del group["column 0"]
    made = group.create_dataset("column 0", (3,), "<f8", chunks=(2,), maxshape=(None,))
    made[:] = 1
    made.resize((9,))  # chunks that nobody wrote read as zeros


def _described(group: Any) -> None:
    for number in range(9):
        group["column 0"].attrs[f"note {number}"] = "much that is not numbers"


def _resized(group: Any) -> None:
    del group["column 0"]
    made = group.create_dataset("column 0", data=np.ones(6), chunks=(6,), maxshape=(None,))
    made.resize((9,))  # the only chunk has less than that


ODD = [_resized, _renamed, _of_another_dtype, _compressed, _extended, _described]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_a_group_unlike_the_first_is_read_by_hdf5(tmp_path, odd) -> None:
    write(tmp_path / "a.hdf5", [5, 6, 7, 8], odd=odd)
    noticed_when_read = odd in (_extended, _resized)
    assert known(tmp_path / "a.hdf5")[1] is noticed_when_read
    for mine, theirs in zip(read(tmp_path / "a.hdf5"), expected(tmp_path / "a.hdf5"), strict=True):
        for key, column in theirs.items():
            # the form of the first group is what a reader asks for
            np.testing.assert_array_equal(mine[key], column.astype(mine[key].dtype), strict=True)


@pytest.mark.parametrize(
    "options",
    [{"chunks": None}, {"compression": "gzip"}, {"shuffle": True}, {"libver": "latest"}],
    ids=str,
)
def test_files_of_other_forms_are_read_by_hdf5(tmp_path, options) -> None:
    write(tmp_path / "a.hdf5", [5, 6, 7], **options)
    assert not any(known(tmp_path / "a.hdf5"))
    require_equal(tmp_path / "a.hdf5")


@pytest.mark.parametrize("seed", range(3))
def test_no_damage_of_a_file_reads_past_its_end(tmp_path, seed) -> None:
    write(tmp_path / "a.hdf5", [40, 50, 60])
    content = (tmp_path / "a.hdf5").read_bytes()
    rng = np.random.default_rng(seed)
    with h5py.File(tmp_path / "a.hdf5") as file:
        names = list(file)
        dtypes = {path: one.dtype for path, one in leaves(file[names[0]])}
    for _ in range(60):
        damaged = bytearray(content[: rng.integers(200, len(content))])
        for place in rng.integers(0, len(damaged), 400):
            damaged[place] = rng.integers(256)
        (tmp_path / "b.hdf5").write_bytes(damaged)
        plain = PlainHDF5(tmp_path / "b.hdf5")
        for path, column in plain.find(names).items():
            for place in range(len(names)):
                found = plain.read(column, place, dtypes.get(path, np.dtype("<f8")))
                assert found is None or found.nbytes <= len(content)
