import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_datasets.rlds.crc32c import crc32c, masked_crc
from rl_datasets.rlds.records import example, read, records, unpacked


def bit_by_bit(data):
    """The checksum by its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(0, 5_000))
def test_checksums_of_any_length_are_those_of_the_definition(start, length):
    data = start + bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    assert crc32c(data) == bit_by_bit(data)


def test_checksums_of_the_standard():
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720
    assert crc32c(bytes([255] * 32)) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def record(content):
    head = struct.pack("<Q", len(content))
    foot = struct.pack("<I", masked_crc(content))
    return head + struct.pack("<I", masked_crc(head)) + content + foot


def test_records_are_found_and_read(tmp_path):
    path = tmp_path / "one.tfrecord"
    path.write_bytes(record(b"abc") + record(b"") + record(b"x" * 3000))
    found = list(records(path))
    assert [content for _, content in found] == [b"abc", b"", b"x" * 3000]
    with path.open("rb") as file:
        assert read(file, found[2][0]) == b"x" * 3000


def test_damage_is_named_with_its_byte(tmp_path):
    path = tmp_path / "one.tfrecord"
    whole = record(b"abc") + record(b"y" * 50)
    for bad, message in [
        (whole[:-10], "after byte 19 a record of 50 bytes"),
        (whole[:25], "after byte 19 a record begins"),
        (whole[:20] + b"!" + whole[21:], "after byte 19 the length of a record is wrong"),
    ]:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=rf"one\.tfrecord.*{message}"):
            list(records(path))
    path.write_bytes(whole[:40] + b"!" + whole[41:])
    (_, _), (second, _) = records(path)
    with path.open("rb") as file, pytest.raises(ValueError, match="another checksum"):
        read(file, second)


def varint(value):
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values):
    """A feature of bytes, floats or whole numbers, as TensorFlow writes it."""
    if isinstance(values, list):
        return field(1, b"".join(field(1, value) for value in values))
    values = np.asarray(values).reshape(-1)
    if values.dtype.kind == "f":
        return field(2, field(1, values.astype("<f4").tobytes()))
    return field(3, field(1, b"".join(varint(int(value)) for value in values)))


def packed(features):
    entries = [field(1, name.encode()) + field(2, feature(one)) for name, one in features.items()]
    return field(1, b"".join(field(1, entry) for entry in entries))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_whole_numbers_of_any_size_come_back(numbers):
    (found,) = example(packed({"n": np.array(numbers, np.int64)})).values()
    assert np.array_equal(unpacked(found), numbers)


def test_features_of_all_kinds_come_back():
    features = {"b": [b"one", b""], "f": np.array([0.5, -2], np.float32), "none": []}
    found = {name: unpacked(one) for name, one in example(packed(features)).items()}
    assert found["b"] == [b"one", b""]
    assert found["f"].tolist() == [0.5, -2]
    assert not found["none"]


@pytest.mark.parametrize("content", [b"\x0a\xff", b"\x0a\x05abc", b"\x0b", b"\x80" * 12])
def test_damaged_examples_are_refused(content):
    with pytest.raises(ValueError, match="damaged"):
        example(content)
