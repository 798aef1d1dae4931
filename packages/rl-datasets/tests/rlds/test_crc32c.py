"""The checksum of records, by the check value that its standard lists."""

from rl_datasets.rlds.crc32c import crc32c


def test_the_checksum_of_nine_digits_is_the_listed_one():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
