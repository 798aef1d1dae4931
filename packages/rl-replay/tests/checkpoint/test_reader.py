import json
import os
import resource
import zlib
from functools import partial

import numpy as np
import pytest
import torch

from rl_replay.checkpoint import Archive, Chunks, dump, load
from rl_replay.checkpoint.manifest import FORMAT_VERSION, MANIFEST
from rl_slabs.dtypes import carrier

FORMER = {"rows": torch.arange(7), "words": ["former"]}
NEWER = {"rows": torch.arange(100_000), "words": ["newer"], "more": {"flags": torch.ones(3) > 0}}

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bfloat16",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
]


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is type(two) and one.dtype == two.dtype and bool((one == two).all())
    return one == two


def data_file(folder):
    head = json.loads((folder / MANIFEST).read_bytes().rpartition(b"\n")[0])
    return folder / head["data"]["file"]


def test_parts_are_read_as_they_were_given(tmp_path):
    parts = {
        "counts": np.arange(5, dtype=np.int32),
        "nested": {"deep": {"tensor": torch.arange(6.0).view(2, 3)}, "none": None},
        "plain": [1, 2.5, "three", True, {"four": [4]}],
        "empty": {},
        "nothing": torch.zeros(0, 3),
    }
    dump(tmp_path, parts)
    assert same(load(tmp_path), parts)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_read_bit_for_bit(tmp_path, name):
    dtype = getattr(torch, name)
    count = 5 * 3 * dtype.itemsize
    bits = torch.randint(2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8)
    tensor = bits.view(dtype).view(5, 3)
    dump(tmp_path, {"leaf": tensor})
    found = load(tmp_path)["leaf"]
    assert found.dtype is dtype
    assert found.view(carrier(dtype)).numpy().tobytes() == bits.numpy().tobytes()


def test_array_that_is_not_contiguous_is_read_back(tmp_path):
    tensor = torch.arange(24).view(4, 6).t()
    dump(tmp_path, {"t": tensor, "n": tensor.numpy()[::2]})
    found = load(tmp_path)
    assert (found["t"] == tensor).all()
    assert (found["n"] == tensor.numpy()[::2]).all()


def test_pieces_are_written_end_to_end(tmp_path):
    rows = torch.arange(10)
    dump(tmp_path, {"rows": Chunks(rows.dtype, (7,), lambda: [rows[6:], rows[:3]])})
    assert load(tmp_path)["rows"].tolist() == [6, 7, 8, 9, 0, 1, 2]


def test_read_into_fills_tensors_of_the_caller(tmp_path):
    dump(tmp_path, {"rows": torch.arange(5)})
    room = torch.zeros(9, dtype=torch.int64)
    with Archive(tmp_path) as archive:
        archive.read_into("rows", [room[7:], room[:3]])
        with pytest.raises(ValueError, match="has 40 bytes, not 24"):
            archive.read_into("rows", [room[:3]])
    assert room.tolist() == [2, 3, 4, 0, 0, 0, 0, 0, 1]


def test_second_dump_replaces_the_first_and_leaves_two_files(tmp_path):
    dump(tmp_path, FORMER)
    dump(tmp_path, NEWER)
    assert same(load(tmp_path), NEWER)
    assert len(os.listdir(tmp_path)) == 2


UNWRITTEN = [{1, 2}, object(), b"bytes", np.random.default_rng(0)]


@pytest.mark.parametrize("part", UNWRITTEN, ids=lambda part: type(part).__name__)
def test_dump_names_an_object_that_needs_a_pickle(tmp_path, part):
    dump(tmp_path, FORMER)
    with pytest.raises(TypeError, match="'group/part' cannot be written"):
        dump(tmp_path, {"group": {"part": part}})
    assert same(load(tmp_path), FORMER)


def test_dump_refuses_an_array_of_objects(tmp_path):
    with pytest.raises(TypeError):
        dump(tmp_path, {"part": np.array([object()])})


def test_dump_holds_no_pickle(tmp_path):
    dump(tmp_path, NEWER)
    assert json.loads((tmp_path / MANIFEST).read_bytes().rpartition(b"\n")[0])
    raw = data_file(tmp_path).read_bytes()
    assert raw[:800_000] == NEWER["rows"].numpy().tobytes()


def test_folder_without_a_manifest_is_no_dump(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no dump: there is no manifest\.json"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no dump"):
        load(tmp_path / "nowhere")


def test_dump_refuses_a_file_for_a_folder(tmp_path):
    (tmp_path / "file").write_text("something")
    with pytest.raises(FileNotFoundError, match="holds no dump"):
        load(tmp_path / "file")
    with pytest.raises(FileExistsError, match="is a file: a dump is a folder"):
        dump(tmp_path / "file", FORMER)


def test_dump_names_a_folder_that_cannot_be_made(tmp_path):
    with pytest.raises(
        OSError, match=r"the folder /proc/1/dumps of a dump cannot be made: .* Choose"
    ):
        dump("/proc/1/dumps", FORMER)


@pytest.mark.parametrize("text", ['{"name": "an app", "version": 3}\n', "not JSON"])
def test_manifest_of_another_program_is_neither_read_nor_overwritten(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json is no manifest of a dump"):
        load(tmp_path)
    with pytest.raises(FileExistsError, match="It would be lost"):
        dump(tmp_path, FORMER)
    assert (tmp_path / MANIFEST).read_text() == text


def test_dump_of_another_version_is_refused(tmp_path):
    dump(tmp_path, FORMER)
    text = (tmp_path / MANIFEST).read_text()
    body = text.rpartition("\n")[0].replace(
        f'"version": {FORMAT_VERSION}', f'"version": {FORMAT_VERSION + 1}'
    )
    (tmp_path / MANIFEST).write_text(f"{body}\n{zlib.crc32(body.encode()):08x}")
    with pytest.raises(ValueError, match=f"is of version {FORMAT_VERSION + 1} and this one reads"):
        load(tmp_path)


def test_changed_byte_of_the_data_is_found_at_any_offset(tmp_path):
    """In each part, and in the gaps between parts, which are aligned."""
    dump(tmp_path, FORMER | {"flags": torch.ones(3) > 0})
    name = data_file(tmp_path)
    whole = name.read_bytes()
    assert len(whole) > 7 * 8 + 3
    for place in range(len(whole)):
        name.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        part = "rows" if place < 7 * 8 else "flags"
        with pytest.raises(ValueError, match=rf"{name.name} was altered: .* '{part}'"):
            load(tmp_path)


def test_changed_byte_of_the_manifest_is_found_at_any_offset(tmp_path):
    dump(tmp_path, FORMER)
    name = tmp_path / MANIFEST
    whole = name.read_bytes()
    for place in range(len(whole)):
        name.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"manifest\.json"):
            load(tmp_path)


@pytest.mark.parametrize("which", ["data", "manifest"])
def test_truncated_file_is_named(tmp_path, which):
    dump(tmp_path, FORMER)
    name = data_file(tmp_path) if which == "data" else tmp_path / MANIFEST
    whole = name.read_bytes()
    for length in range(len(whole)):
        name.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=name.name):
            load(tmp_path)


def test_missing_data_file_is_named(tmp_path):
    dump(tmp_path, FORMER)
    name = data_file(tmp_path)
    name.unlink()
    with pytest.raises(ValueError, match=f"{name.name} is missing"):
        load(tmp_path)


def test_dumps_at_the_same_time_exclude_each_other(tmp_path):
    dump(tmp_path, FORMER)

    def pieces():
        with pytest.raises(BlockingIOError, match="another dump"):
            dump(tmp_path, FORMER)
        yield torch.arange(3)

    dump(tmp_path, {"rows": Chunks(torch.int64, (3,), pieces)})
    assert load(tmp_path)["rows"].tolist() == [0, 1, 2]


def test_part_that_fails_leaves_the_former_dump_and_no_file(tmp_path):
    dump(tmp_path, FORMER)

    def pieces():
        yield torch.arange(3)
        raise KeyError("gone")

    with pytest.raises(KeyError):
        dump(tmp_path, {"rows": Chunks(torch.int64, (5,), pieces)})
    assert same(load(tmp_path), FORMER)
    assert len(os.listdir(tmp_path)) == 2


def test_full_disk_leaves_the_former_dump_and_no_file(tmp_path):
    # the limit on a file's size represents a disk's: both end a write early with an OSError
    dump(tmp_path, FORMER)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="What was dumped there before is whole"):
            dump(tmp_path, NEWER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(load(tmp_path), FORMER)
    assert len(os.listdir(tmp_path)) == 2


SYSTEM_CALLS = [(os, name) for name in ("open", "write", "fsync", "replace", "unlink", "close")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads of torch's
def test_kill_at_any_system_call_leaves_one_of_two_dumps_whole(tmp_path, killed_at):
    seen = []
    for call in range(100):
        folder = tmp_path / str(call)
        dump(folder, FORMER)
        came_so_far = killed_at(call, SYSTEM_CALLS, partial(dump, folder, NEWER))
        found = load(folder)
        seen.append(found["words"][0])
        assert same(found, FORMER) or same(found, NEWER)
        dump(folder, FORMER)  # and the next dump clears away what was left
        assert same(load(folder), FORMER)
        assert len(os.listdir(folder)) == 2
        if not came_so_far:
            break
    assert "former" in seen
    assert seen[-1] == "newer"
    assert sorted(seen) == seen  # former ones first: there is one moment at which it changes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_first_dump_that_is_killed_is_no_dump(tmp_path, killed_at):
    assert killed_at(4, SYSTEM_CALLS, partial(dump, tmp_path, NEWER))
    with pytest.raises(FileNotFoundError, match="holds no dump"):
        load(tmp_path)
    dump(tmp_path, NEWER)
    assert same(load(tmp_path), NEWER)


def test_dump_is_loaded_from_a_renamed_folder(tmp_path):
    dump(tmp_path / "here", NEWER)
    os.rename(tmp_path / "here", tmp_path / "there")
    assert same(load(tmp_path / "there"), NEWER)


@pytest.mark.parametrize("name", DTYPES)
def test_mapped_array_is_the_one_that_is_read(tmp_path, name):
    dtype = getattr(torch, name)
    bits = torch.arange(35, dtype=torch.uint8)[: 35 // dtype.itemsize * dtype.itemsize]
    raw = carrier(dtype)
    rows = torch.arange(6, dtype=torch.uint8).repeat(dtype.itemsize).view(raw).view(dtype)
    dump(tmp_path, {"bits": bits, "rows": rows.view(3, 2), "nothing": rows[:0]})
    with Archive(tmp_path) as archive:
        found, nothing = archive.mapped("rows"), archive.mapped("nothing")
    assert (found.dtype, nothing.dtype) == (dtype, dtype)
    assert (tuple(found.shape), tuple(nothing.shape)) == ((3, 2), (0,))
    assert found.view(raw).tolist() == rows.view(raw).view(3, 2).tolist()
    found.zero_()  # in this process alone
    assert load(tmp_path)["rows"].view(raw).tolist() == rows.view(raw).view(3, 2).tolist()


@pytest.mark.parametrize("path", [3, None, b"folder", "", "a\0b"])
def test_a_path_that_is_no_name_is_named(path):
    for call in (load, Archive, partial(dump, parts={"x": torch.zeros(2)})):
        with pytest.raises(TypeError, match=r"path is the name of a folder, got .*: give a str"):
            call(path)
