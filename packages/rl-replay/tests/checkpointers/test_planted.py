"""Compact forms that somebody made: the checksums are right, the contents are not."""

import os

import h5py
import numpy as np
import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyTensorStorage,
    ReplayBuffer,
)
from rl_replay.checkpoint import dump, load

FORMS = {"flat": FlatStorageCheckpointer, "h5": H5StorageCheckpointer}


def buffer(form, lossless=False):
    made = ReplayBuffer(storage=LazyTensorStorage(30, lossless=lossless))
    made.storage.checkpointer = FORMS[form]()
    return made


def replanted(tmp_path, make, rows=None):
    """A dump whose file of rows somebody else made, with a manifest that fits it."""
    from rl_replay.checkpoint.parts import OtherFile
    from rl_replay.checkpoint.reader import Archive

    one = buffer("h5")
    one.extend(trajectories([5]) if rows is None else rows)
    one.dumps(tmp_path / "one")
    with Archive(tmp_path / "one") as archive:
        parts = archive.read()
    parts["storage"]["compact"]["file"] = OtherFile(".h5", make)
    dump(tmp_path / "two", parts)
    return tmp_path / "two"


def foreign(name):
    with h5py.File(name, "w") as file:
        file["a"] = np.zeros(3)


def linked(name):
    with h5py.File(name.with_name("secret.h5"), "w") as file:
        file["lengths"] = np.array([5])
    with h5py.File(name, "w") as file:
        file.attrs["format"], file.attrs["version"] = "rl-replay rows", 1
        file.attrs["shared"], file.attrs["steps"] = "[]", "[]"
        file["lengths"] = h5py.ExternalLink("secret.h5", "lengths")


def shorter(name):
    with h5py.File(name, "w") as file:
        file.attrs["format"], file.attrs["version"] = "rl-replay rows", 1
        file.attrs["shared"], file.attrs["steps"] = "[]", "[]"
        file["lengths"] = np.array([4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (foreign, "no file of rows of rl-replay"),
        (linked, "'lengths' is a link"),
        (shorter, "4 rows of the leaves"),
    ],
)
def test_a_planted_file_is_refused_and_nothing_is_lost(tmp_path, make, message):
    folder = replanted(tmp_path, make)
    two = buffer("h5")
    two.extend(trajectories([3]))
    with pytest.raises(ValueError, match=message):
        two.loads(folder)
    assert len(two) == 3


def planted_h5(name):
    """A file whose rows and lengths are right, to be altered."""
    one = buffer("h5")
    one.extend(mixed())
    one.dumps(name.parent / "source")
    (made,) = (name.parent / "source").glob("rows-*.h5")
    name.write_bytes(made.read_bytes())


def mixed():
    """Two trajectories by turns, where one next value is not that of the next row."""
    rows = trajectories([6, 6])[torch.arange(12).view(2, 6).T.reshape(-1)]
    rows["next", "observation"][3] += 1
    return rows


def put(name, make):
    """Puts something in the place of a dataset."""

    def alter(file):
        kept, attributes = file[name][:], dict(file[name].attrs)
        del file[name]
        made = make(kept)
        if isinstance(made, h5py.ExternalLink | h5py.SoftLink):
            file[name] = made
        else:
            options = {"data": made} if isinstance(made, np.ndarray | h5py.Empty) else made
            file.create_dataset(name, **options)
            file[name].attrs.update(attributes)

    return alter


HUGE = {"shape": (1 << 40,), "dtype": "i8", "chunks": (1 << 16,), "compression": "gzip"}
HUGE_ORDER = HUGE | {"dtype": "i4"}
WRONG = "exceptions/0/rows"
SHARED = "shared/observation"
PLANTED_IN_H5 = {
    "lengths that are huge": put("lengths", lambda kept: HUGE),
    "lengths as floats": put("lengths", lambda kept: kept.astype("f8")),
    "lengths in columns": put("lengths", lambda kept: kept[:, None]),
    "lengths that wrap": put("lengths", lambda kept: np.array([12 - (1 << 62), 1 << 62])),
    "lengths of references": put("lengths", lambda kept: {"shape": 2, "dtype": h5py.ref_dtype}),
    "lengths of nothing": put("lengths", lambda kept: h5py.Empty("i8")),
    "order that is huge": put("order", lambda kept: HUGE_ORDER),
    "order as floats": put("order", lambda kept: kept.astype("f4")),
    "order from elsewhere": put("order", lambda kept: h5py.ExternalLink("pipe", "/x")),
    "exceptions that are huge": put(WRONG, lambda kept: HUGE),
    "exceptions as floats": put(WRONG, lambda kept: kept.astype("f8")),
    "exceptions in columns": put(WRONG, lambda kept: kept[:, None]),
    "exceptions from elsewhere": put(WRONG, lambda kept: h5py.ExternalLink("pipe", "/x")),
    "a leaf of nothing": put(SHARED, lambda kept: h5py.Empty("f4")),
    "a chunk above the rows": put(
        SHARED, lambda kept: {"data": kept, "chunks": (1 << 20, 2), "maxshape": (None, 2)}
    ),
    "names that are none": lambda file: file.attrs.update(shared="[["),
    "names of nothing": lambda file: file.attrs.update(shared="[[]]"),
    "a number of names": lambda file: file.attrs.update(shared=3),
    "nested names": lambda file: file.attrs.update(shared="[" * 60_000),
    "no names": lambda file: file.attrs.pop("shared"),
}


@pytest.mark.parametrize("kind", PLANTED_IN_H5)
@pytest.mark.parametrize("lossless", [False, True])
def test_an_altered_file_of_rows_is_refused_and_nothing_is_lost(tmp_path, kind, lossless):
    def make(name):
        planted_h5(name)
        os.mkfifo(name.parent / "pipe")  # a process that opens it waits
        with h5py.File(name, "a") as file:
            PLANTED_IN_H5[kind](file)

    folder = replanted(tmp_path, make, mixed())
    two = buffer("h5", lossless)
    two.extend(trajectories([3], first_id=70))
    before = two[:].clone()
    with pytest.raises(ValueError, match=r"\w{4}"):
        two.loads(folder)
    assert (two[:] == before).all()


def test_a_file_that_is_cut_is_refused_also_where_its_checksum_is_right(tmp_path):
    def make(name):
        planted_h5(name)
        name.write_bytes(name.read_bytes()[:3000])

    two = buffer("h5")
    two.extend(trajectories([3]))
    with pytest.raises(ValueError, match="cannot be read"):
        two.loads(replanted(tmp_path, make, mixed()))
    assert len(two) == 3


def part_of(name, make):
    def alter(parts):
        *groups, last = f"storage/compact/{name}".split("/")
        for group in groups:
            parts = parts[group]
        parts[last] = make(parts[last])

    return alter


PLANTED = {
    "lengths as floats": part_of("lengths", lambda kept: kept.astype(np.float64)),
    "lengths of words": part_of("lengths", lambda kept: "twelve"),
    "lengths as a list": part_of("lengths", lambda kept: kept.tolist()),
    "lengths in columns": part_of("lengths", lambda kept: kept[:, None]),
    "lengths that wrap": part_of("lengths", lambda kept: np.array([12 - (1 << 62), 1 << 62])),
    "no lengths": part_of("lengths", lambda kept: None),
    "order as floats": part_of("order", lambda kept: kept.astype(np.float32)),
    "order of complex numbers": part_of("order", lambda kept: kept.astype(np.complex64)),
    "order that names rows twice": part_of("order", np.zeros_like),
    "exceptions as floats": part_of(WRONG, lambda kept: kept.astype(np.float64)),
    "exceptions as flags": part_of(WRONG, lambda kept: kept.astype(np.bool_)),
    "exceptions in columns": part_of(WRONG, lambda kept: kept[:, None]),
    "exceptions of words": part_of(WRONG, lambda kept: "three"),
    "exceptions that are not there": part_of(WRONG, lambda kept: kept - 12),
    "names of words": part_of("names/shared", lambda kept: "observation"),
    "names twice": part_of("names/shared", lambda kept: kept + kept[:1]),
}


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("lossless", [False, True])
def test_an_altered_compact_form_is_refused_and_nothing_is_lost(tmp_path, kind, lossless):
    one, two = buffer("flat"), buffer("flat", lossless)
    one.extend(mixed())
    one.dumps(tmp_path / "one")
    parts = load(tmp_path / "one")
    PLANTED[kind](parts)
    dump(tmp_path / "two", parts)
    two.extend(trajectories([3], first_id=70))
    before = two[:].clone()
    with pytest.raises(ValueError, match=r"\w{4}"):
        two.loads(tmp_path / "two")
    assert (two[:] == before).all()
