"""Files that somebody else may have put where one of ours is expected."""

import json
import os
import struct
import zlib
from pathlib import Path

import pytest
import torch

from rl_slabs import Arrays, Lanes, LazyFile, RowSchema, Slab
from rl_slabs.lanes.lane import FLOOR, PUBLISHED, RESERVED
from rl_slabs.memory.manifest import Manifest

SCHEMA = RowSchema({"a": (torch.float32, (3,))})


def planted(path, head, magic=b"RL-SLAB\n", size=8192):
    """Writes a head under a checksum that is right."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    packed = struct.pack("<8sIIQ", magic, 1, zlib.crc32(text), len(text))
    path.write_bytes((packed + text).ljust(size, b"\0"))
    return path


def head(**changes):
    plain = json.loads(Manifest(SCHEMA, 12, 3).to_bytes().partition(b"{")[2].join([b"{", b""]))
    return plain | changes


def field(**changes):
    schema = SCHEMA.to_dict()
    schema["fields"][0] |= changes
    return schema


HEADS = {
    "a negative capacity": (head(capacity=-12), "capacity must be at least 1, got -12"),
    "a capacity that is no number": (head(capacity="12"), "capacity must be an integer, got str"),
    "a huge capacity": (head(capacity=3 << 60), "was cut short or appended to"),
    "no lane": (head(lanes=0), "lanes must be at least 1, got 0"),
    "more lanes than rows": (head(lanes=1 << 40), "capacity must be a multiple of lanes"),
    "negative spare rows": (head(spare=-5), "spare must be an integer of 0 or more, got -5"),
    "spare rows that are no number": (
        head(spare=[1]),
        r"spare must be an integer of 0 or more, got \[1\]",
    ),
    "a text that is none": (head(about={"structure": 1}), "about must be a text, got dict"),
    "a negative shape": (head(schema=field(shape=[-3])), r"has shape \[-3\]"),
    "a shape of words": (head(schema=field(shape=["three"])), "not a row schema"),
    "another place": (head(schema=field(offset=-8)), "the places of the leaves differ"),
    "a dtype that is a class": (head(schema=field(dtype="nn.Module")), "unknown dtype 'nn.Module'"),
    "no schema": (head(schema=None), "not a row schema: .* got None"),
    "fields that are none": (head(schema={"fields": 3}), "not a row schema: .*'fields': 3"),
    "a list": (b"[1, 2]", "is no JSON object"),
    "no JSON": (b"{", "is no JSON object"),
    "lists in lists": (b"[" * 100_000 + b"]" * 100_000, "is no JSON object"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_is_none_is_refused_though_its_checksum_is_right(tmp_path, kind):
    content, words = HEADS[kind]
    path = planted(tmp_path / "slab", content, size=300_000)
    with pytest.raises(ValueError, match=words):
        Slab.open(path)


def test_the_length_of_a_head_is_bounded(tmp_path):
    text = struct.pack("<8sIIQ", b"RL-SLAB\n", 1, 0, 1 << 60)
    with (tmp_path / "slab").open("wb") as file:
        file.write(text)
        file.truncate(1 << 40)  # sparse, as large as it says
    with pytest.raises(ValueError, match="was altered"):
        Slab.open(tmp_path / "slab")


@pytest.mark.parametrize("kind", [Slab, LazyFile, Arrays])
def test_a_pipe_or_a_device_is_refused_without_waiting(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="no regular file"):
            kind.open(path)
    with pytest.raises(IsADirectoryError):
        kind.open(tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": ["int64", [-5]]},
        {"a": ["object", [5]]},
        {"a": ["int64", 5]},
        {"a": "int64"},
        {},
        None,
    ],
)
def test_a_head_that_names_no_arrays_is_refused(tmp_path, arrays):
    plain = {"byteorder": "little", "arrays": arrays}
    with pytest.raises(ValueError, match="names no arrays"):
        Arrays.open(planted(tmp_path / "arrays", plain, b"RL-ARRAY"))


@pytest.mark.parametrize("word", [RESERVED, PUBLISHED, FLOOR])
@pytest.mark.parametrize("value", [-(1 << 62), -1, 1 << 46])
def test_words_of_a_file_never_tell_of_more_rows_than_there_are(tmp_path, word, value):
    slab = Slab.mapped(SCHEMA, 12, tmp_path / "slab", lanes=3)
    slab.words[1, word] = value
    lanes = Lanes(Slab.open(tmp_path / "slab"))
    assert all(0 <= count <= 4 for count in lanes.window().counts)


def flags_of(path):
    """What the kernel was told about the mappings of a file."""
    found, here = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            here = line.endswith(str(path))
        elif here and line.startswith("VmFlags:"):
            found.append(line.split()[1:])
    return found


def test_a_mapped_file_is_read_without_reading_ahead_but_for_passes_over_all(tmp_path):
    slab = Slab.mapped(SCHEMA, 4096, tmp_path / "slab")
    again = Slab.open(tmp_path / "slab")
    random = [True, True]
    assert ["rr" in flags for flags in flags_of(tmp_path / "slab")] == random
    with slab.read_ahead():
        assert sum("sr" in flags for flags in flags_of(tmp_path / "slab")) == 1
    assert ["rr" in flags for flags in flags_of(tmp_path / "slab")] == random
    assert again.capacity == 4096


def test_mapped_arrays_are_read_without_reading_ahead(tmp_path):
    arrays = Arrays.mapped({"free": ("int32", (5000,))}, tmp_path / "arrays")
    assert [flags for flags in flags_of(tmp_path / "arrays") if "rr" not in flags] == []
    assert len(arrays["free"]) == 5000
