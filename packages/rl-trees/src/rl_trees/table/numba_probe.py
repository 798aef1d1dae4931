"""Probes of a table of keys, compiled by numba: the same rows as `numpy_probe`."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

from rl_trees.table import numpy_probe

_EMPTY, _ROW = np.uint64(numpy_probe.EMPTY), np.uint64(numpy_probe.ROW)
_SPREAD, _ONE, _HALF = np.uint64(numpy_probe.SPREAD), np.uint64(1), np.uint64(32)
_options: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
_inlined: Any = {**_options, "inline": "always"}
# Slots are counted by unsigned numbers: a signed index may be negative, which each access asks.
# Loops over the words of a key have no branches, so that several words are taken at a time.


@njit(**_options)
def hash_words(words, factors):
    """Hashes keys `[N, W]`."""
    hashes = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        mixed = np.uint64(words.shape[1])
        for column in range(words.shape[1]):
            word = words[row, column]
            mixed += (word ^ (word >> _HALF)) * factors[column]
        mixed = (mixed ^ (mixed >> _HALF)) * _SPREAD
        hashes[row] = mixed ^ (mixed >> _HALF)
    return hashes


@njit(**_inlined)
def _shift(slots):
    """How far a product is shifted to be the number of a slot."""
    shift, count = np.uint64(64), np.uint64(len(slots))
    while count > _ONE:
        count >>= _ONE
        shift -= _ONE
    return shift


@njit(**_inlined)
def _row(content):
    """The row in a slot, -1 in an empty one."""
    return np.int64(content & _ROW) - 1


@njit(**_inlined)
def _content(key_hash, row):
    """What the slot of a row holds."""
    return (key_hash & ~_ROW) | np.uint64(row + 1)


@njit(**_inlined)
def _next(slots, place, key_hash):
    """The first slot from a place on that is empty, or whose hash agrees in the bits it has."""
    mask = np.uint64(len(slots) - 1)
    while True:
        content = slots[place]
        if content == _EMPTY or (content ^ key_hash) <= _ROW:
            return place
        place = (place + _ONE) & mask


@njit(**_inlined)
def _differ(stored, row, words, place):
    """Zero where two keys are equal."""
    bits = np.uint64(0)
    for column in range(words.shape[1]):
        bits |= stored[row, column] ^ words[place, column]
    return bits


@njit(**_options)
def _slot(slots, stored, words, place, key_hash, shift):
    """The slot that holds a key, or the empty one where it belongs."""
    # Fibonacci hashing: the upper bits of the product are the slot
    slot = _next(slots, (key_hash * _SPREAD) >> shift, key_hash)
    while slots[slot] != _EMPTY:
        if _differ(stored, _row(slots[slot]), words, place) == 0:
            break
        slot = _next(slots, (slot + _ONE) & np.uint64(len(slots) - 1), key_hash)
    return slot


@njit(**_options)
def find(slots, stored, words, hashes):
    """The rows of keys, and -1 for keys that are not there."""
    # One pass over the slots and one over the keys: reads of a pass do not wait for one another.
    found = np.empty(len(words), np.int64)
    shift = _shift(slots)
    for place in range(len(words)):
        found[place] = _row(slots[_next(slots, (hashes[place] * _SPREAD) >> shift, hashes[place])])
    for place in range(len(words)):
        if found[place] >= 0 and _differ(stored, found[place], words, place) != 0:
            found[place] = _row(slots[_slot(slots, stored, words, place, hashes[place], shift)])
    return found


@njit(**_options)
def insert(slots, stored, stored_hashes, count, words, hashes):
    """Adds keys in the order of the batch; returns the rows of all, and which were added."""
    rows, added = np.empty(len(words), np.int64), np.zeros(len(words), np.bool_)
    shift, new = _shift(slots), count
    for place in range(len(words)):  # as if keys whose slots agree with their hashes were equal
        slot = _next(slots, (hashes[place] * _SPREAD) >> shift, hashes[place])
        if slots[slot] == _EMPTY:
            slots[slot] = _content(hashes[place], new)
            added[place] = True
            new += 1
        rows[place] = _row(slots[slot])
    for place in range(len(words)):
        if added[place]:
            stored_hashes[rows[place]] = hashes[place]
            for column in range(words.shape[1]):
                stored[rows[place], column] = words[place, column]
    for place in range(len(words)):
        if not added[place] and _differ(stored, rows[place], words, place) != 0:
            _clear(slots, stored_hashes, count, new, shift)
            _insert_exactly(slots, stored, stored_hashes, count, words, hashes, rows, added)
            break
    return rows, added


@njit(**_options)
def _clear(slots, stored_hashes, begin, end, shift):
    """Empties the slots of the rows that were placed last."""
    for row in range(begin, end):
        place = (stored_hashes[row] * _SPREAD) >> shift
        while _row(slots[place]) != row:
            place = (place + _ONE) & np.uint64(len(slots) - 1)
        slots[place] = _EMPTY


@njit(**_options)
def _insert_exactly(slots, stored, stored_hashes, count, words, hashes, rows, added):
    """Adds keys one after the other, each compared before the next one is placed."""
    shift = _shift(slots)
    for place in range(len(words)):
        slot = _slot(slots, stored, words, place, hashes[place], shift)
        added[place] = slots[slot] == _EMPTY
        if added[place]:
            slots[slot] = _content(hashes[place], count)
            stored_hashes[count] = hashes[place]
            for column in range(words.shape[1]):
                stored[count, column] = words[place, column]
            count += 1
        rows[place] = _row(slots[slot])


@njit(**_options)
def place_rows(slots, hashes):
    """Writes the rows 0, 1, ... of known different keys into empty slots."""
    mask, shift = np.uint64(len(slots) - 1), _shift(slots)
    for row in range(len(hashes)):
        place = (hashes[row] * _SPREAD) >> shift
        while slots[place] != _EMPTY:
            place = (place + _ONE) & mask
        slots[place] = _content(hashes[row], row)


@njit(**_options)
def latest(rows, scratch):
    """Which places of a batch are the last ones with their row."""
    last = np.empty(len(rows), np.bool_)
    for place in range(len(rows)):
        scratch[rows[place]] = place
    for place in range(len(rows)):
        last[place] = scratch[rows[place]] == place
    return last
