"""Probes of a table of keys, compiled by numba: the same rows as `numpy_probe`."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

from rl_trees.table.numpy_probe import EMPTY, FACTOR, SPREAD

_SPREAD, _FACTOR = np.uint64(SPREAD), np.uint64(FACTOR)
_options: Any = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def hash_words(words):
    """Hashes keys `[N, W]`."""
    hashes = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        mixed = np.uint64(words.shape[1] + 1)
        for column in range(words.shape[1]):
            mixed = (mixed ^ words[row, column]) * _FACTOR
            mixed ^= mixed >> np.uint64(32)
        hashes[row] = mixed
    return hashes


@njit(**_options)
def _shift(slots):
    """How far a product is shifted to be the number of a slot."""
    shift = 64
    while slots > 1:
        slots >>= 1
        shift -= 1
    return np.uint64(shift)


@njit(**_options)
def _slot(slots, stored, stored_hashes, key, key_hash, shift):
    """The slot that holds a key, or the empty one where it belongs."""
    mask = len(slots) - 1
    # Fibonacci hashing: the upper bits of the product are the slot
    place = np.int64((key_hash * _SPREAD) >> shift)
    while True:
        row = slots[place]
        if row == EMPTY:
            return place
        if stored_hashes[row] == key_hash:
            same = True
            for column in range(len(key)):
                if stored[row, column] != key[column]:
                    same = False
                    break
            if same:
                return place
        # linear probing; slots are a power of two, and some are empty
        place = (place + 1) & mask


@njit(**_options)
def find(slots, stored, stored_hashes, words, hashes):
    """The rows of keys, and -1 for keys that are not there."""
    found = np.empty(len(words), np.int64)
    shift = _shift(len(slots))
    for place in range(len(words)):
        found[place] = slots[
            _slot(slots, stored, stored_hashes, words[place], hashes[place], shift)
        ]
    return found


@njit(**_options)
def insert(slots, stored, stored_hashes, count, words, hashes):
    """Adds keys in the order of the batch; returns the rows of all, and which were added."""
    rows, added = np.empty(len(words), np.int64), np.zeros(len(words), np.bool_)
    shift = _shift(len(slots))
    for place in range(len(words)):
        slot = _slot(slots, stored, stored_hashes, words[place], hashes[place], shift)
        if slots[slot] == EMPTY:
            slots[slot] = count
            stored[count] = words[place]
            stored_hashes[count] = hashes[place]
            added[place] = True
            count += 1
        rows[place] = slots[slot]
    return rows, added


@njit(**_options)
def place_rows(slots, hashes):
    """Writes the rows 0, 1, ... of known different keys into empty slots."""
    mask, shift = len(slots) - 1, _shift(len(slots))
    for row in range(len(hashes)):
        place = np.int64((hashes[row] * _SPREAD) >> shift)
        while slots[place] != EMPTY:
            place = (place + 1) & mask
        slots[place] = row
