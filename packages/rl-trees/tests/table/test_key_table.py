from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_trees.table.key_table import KeyTable

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def words(*numbers):
    return np.array(numbers, np.uint64).reshape(len(numbers), -1)


@quiet
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=40), max_size=6),
    st.sampled_from([1, 3, 2**64]),
)
def test_rows_are_those_of_a_dict(loops, batches, different_hashes):
    """Also where all hashes are equal, or there are three of them."""
    table, expected = KeyTable(2), {}
    for batch in batches:
        keys = words(*[(number // 5, number) for number in batch])
        hashes = np.array([number * 2**59 % different_hashes for number in batch], np.uint64)
        before = len(expected)
        rows = [expected.setdefault(number, len(expected)) for number in batch]
        found = table.find(keys, hashes)
        assert found.tolist() == [row if row < before else -1 for row in rows]
        inserted, added = table.insert(keys, hashes)
        assert inserted.tolist() == rows
        assert added.sum() == len(expected) - before
        assert [row for row, new in zip(rows, added, strict=True) if new] == [
            *range(before, len(expected))
        ]
    assert table.words[:, 1:].ravel().tolist() == list(expected)


def test_keys_of_one_hash_stay_apart(loops):
    """Hashes of 8 bits: more than a thousand keys share each of them."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**63, (3_000, 3)).astype(np.uint64)
    hashes = keys[:, 0] & np.uint64(0xFF)
    table = KeyTable(3)
    rows, added = table.insert(keys, hashes)
    assert added.all()
    assert rows.tolist() == [*range(3_000)]
    order = rng.permutation(3_000)
    assert table.find(keys[order], hashes[order]).tolist() == order.tolist()
    assert (table.find(keys + np.uint64(1), hashes) == -1).all()


@pytest.mark.slow
def test_a_million_keys_with_few_hashes_are_found():
    pytest.importorskip("numba")
    keys = np.random.default_rng(1).integers(0, 2**63, (1_000_000, 2)).astype(np.uint64)
    hashes = keys[:, 0] & np.uint64(0xFFFF)
    table = KeyTable(2)
    for begin in range(0, len(keys), 100_000):
        table.insert(keys[begin : begin + 100_000], hashes[begin : begin + 100_000])
    assert (table.find(keys, hashes) == np.arange(len(keys))).all()
    assert (table.find(keys ^ np.uint64(2**63), hashes) == -1).all()


def factor(number):
    """The number-th draw of SplitMix64 of seed 0, made odd."""
    bits = number * 0x9E3779B97F4A7C15 % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return (bits ^ bits >> 31) | 1


def test_hashes_are_equal_on_every_machine_and_different_for_different_words(loops):
    keys, expected = words((1, 2), (2, 1), (0, 2**63)), []
    for first, second in keys.tolist():
        mixed = 2 + (first ^ first >> 32) * factor(1) + (second ^ second >> 32) * factor(2)
        mixed %= 2**64
        mixed = (mixed ^ mixed >> 32) * 0x9E3779B97F4A7C15 % 2**64
        expected.append(mixed ^ mixed >> 32)
    assert KeyTable(2).hash(keys).tolist() == expected
    assert len(set(expected)) == 3


def test_a_full_table_says_what_to_do_and_adds_nothing(loops):
    table = KeyTable(1, max_size=3)
    table.insert(words(4, 5), table.hash(words(4, 5)))
    more = words(5, 6, 7, 6)
    message = r"2 of at most 3 keys are stored, and 2 of these 4 are new: give max_size=4"
    with pytest.raises(RuntimeError, match=message):
        table.insert(more, table.hash(more))
    assert len(table) == 2
    assert table.find(more, table.hash(more)).tolist() == [1, -1, -1, -1]
    fitting = words(5, 6, 6, 6, 6)
    assert table.insert(fitting, table.hash(fitting))[0].tolist() == [1, 2, 2, 2, 2]


def test_truncated_rows_are_forgotten_and_the_others_stay(loops):
    table, keys = KeyTable(1), words(*range(100))
    table.insert(keys, table.hash(keys))
    table.truncate(60)
    assert len(table) == 60
    assert table.find(keys, table.hash(keys)).tolist() == [*range(60), *[-1] * 40]
    assert table.insert(keys[::-1], table.hash(keys[::-1]))[0].tolist()[:2] == [60, 61]


def test_the_last_of_equal_rows_is_the_latest():
    table, keys = KeyTable(1), words(3, 4, 3, 5, 4, 3)
    rows, _ = table.insert(keys, table.hash(keys))
    assert table.latest(rows).tolist() == [False, False, False, True, True, True]
