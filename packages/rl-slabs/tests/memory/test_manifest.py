import json
import struct
import zlib

import pytest
import torch

from rl_slabs import RowSchema
from rl_slabs.memory.manifest import Manifest

SCHEMA = RowSchema({"a": (torch.float32, (3,)), "frame": (torch.uint8, (300,))})


@pytest.fixture
def written(tmp_path):
    """Writes bytes to a file and reads them as a manifest."""

    def read(content):
        (tmp_path / "slab").write_bytes(content)
        with (tmp_path / "slab").open("rb") as file:
            return Manifest.read(file.fileno(), "slab")

    return read


def whole(manifest):
    return manifest.to_bytes().ljust(manifest.nbytes, b"\0")


def test_a_manifest_comes_back_as_it_was(written):
    manifest = Manifest(SCHEMA, 12, 3)
    assert written(whole(manifest)) == manifest


def test_the_parts_follow_each_other_aligned():
    manifest = Manifest(SCHEMA, 12, 3)
    assert manifest.words_offset == 4096
    assert manifest.rows_offset == 4096 + 3 * 64
    # 12 rows of 16 bytes are 192, which is aligned; then 12 frames
    assert manifest.nbytes == manifest.rows_offset + 192 + 12 * 300


def test_spare_rows_leave_a_row_ahead_of_the_others():
    schema = RowSchema({"wide": (torch.int64, (9,))})  # 72 bytes
    manifest = Manifest(schema, 12, 3, spare=5)
    assert manifest.rows_offset == 4096 + 3 * 64 + 128
    assert manifest.taken == manifest.rows_offset + 12 * 72
    assert manifest.nbytes == manifest.taken + 5 * 72


def test_the_number_of_spare_rows_comes_back(written):
    manifest = Manifest(RowSchema({"flag": (torch.bool, ())}), 12, 3, "of a game", 5)
    assert written(whole(manifest)) == manifest


def test_a_long_schema_takes_more_pages():
    many = RowSchema({f"leaf {number}": (torch.bool, ()) for number in range(200)})
    assert Manifest(many, 1).words_offset % 4096 == 0
    assert Manifest(many, 1).words_offset > 4096


@pytest.mark.parametrize("content", [b"", b"RL-SL", b"\x89PNG\r\n\x1a\n" + bytes(99)])
def test_a_foreign_file_is_refused(written, content):
    with pytest.raises(ValueError, match="slab is no slab: expected it to begin with"):
        written(content)


def test_another_version_is_refused(written):
    content = bytearray(whole(Manifest(SCHEMA, 12)))
    content[8:12] = struct.pack("<I", 7)
    with pytest.raises(ValueError, match="has slab format 7, this version reads 1"):
        written(content)


def test_an_altered_head_is_refused(written):
    content = whole(Manifest(SCHEMA, 12)).replace(b'"capacity":12', b'"capacity":13')
    with pytest.raises(ValueError, match="head of slab was altered"):
        written(content)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_refused_with_both_sizes(written, change):
    content = whole(Manifest(SCHEMA, 12))
    content = content[:-1] if change < 0 else content + b"\0"
    expected = f"expected {len(content) - change} bytes for 12 rows, got {len(content)}"
    with pytest.raises(ValueError, match=expected):
        written(content)


def test_a_file_cut_in_its_head_is_refused(written):
    with pytest.raises(ValueError, match="head of slab was altered"):
        written(whole(Manifest(SCHEMA, 12))[:100])


def test_another_byte_order_is_refused(written):
    manifest = Manifest(SCHEMA, 12)
    text = json.dumps({"byteorder": "big"}).encode()
    head = struct.pack("<8sIIQ", b"RL-SLAB\n", 1, zlib.crc32(text), len(text))
    with pytest.raises(ValueError, match="written big-endian"):
        written((head + text).ljust(manifest.nbytes, b"\0"))


@pytest.mark.parametrize(
    ("capacity", "lanes", "said"),
    [
        (0, 1, "capacity must be at least 1, got 0"),
        (12, 0, "lanes must be at least 1, got 0"),
        (1000, 48, "got 1000 and 48. Use 960 or 1008"),
        (3, 5, "got 3 and 5. Use 5 or 5"),
    ],
)
def test_counts_that_do_not_go_together_are_refused(capacity, lanes, said):
    with pytest.raises(ValueError, match=said):
        Manifest(SCHEMA, capacity, lanes)


def test_manifest_refuses_wrong_schemas_and_counts():
    with pytest.raises(TypeError, match="expected a RowSchema, got dict"):
        Manifest({}, 12)
    with pytest.raises(TypeError, match="capacity must be an integer, got float"):
        Manifest(SCHEMA, 12.0)
