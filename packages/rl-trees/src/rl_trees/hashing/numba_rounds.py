"""SipHash-2-4 of many rows, compiled by numba: the same numbers as `numpy_rounds`."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201

from typing import Any

import numpy as np
from numba import njit

from rl_trees.hashing.numpy_rounds import INITIAL

_A, _B, _C, _D = (np.uint64(word) for word in INITIAL)
BLOCK = 64
"""Rows whose states fit into the fastest cache."""

_options: Any = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(inline="always", **_options)
def rotated(word, bits):
    """A word rotated to the left."""
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@njit(inline="always", **_options)
def mixed(a, b, c, d):
    """The state after one SipRound."""
    a, c = a + b, c + d
    b, d = rotated(b, 13) ^ a, rotated(d, 16) ^ c
    a = rotated(a, 32)
    a, c = a + d, c + b
    d, b = rotated(d, 21) ^ a, rotated(b, 17) ^ c
    return a, b, rotated(c, 32), d


@njit(**_options)
def hash_words(words, length, key):
    """Hashes rows of padded words; arguments and result as in `numpy_rounds`."""
    # Rows are hashed in blocks: loops over all lanes of a block, in one array and of a constant
    # length, are vectorised.
    hashes, lanes = np.empty(len(words), np.uint64), np.zeros(5 * BLOCK, np.uint64)
    for begin in range(0, len(words), BLOCK):
        rows = min(BLOCK, len(words) - begin)
        for lane in range(BLOCK):
            lanes[lane] = _A ^ key[0]
            lanes[lane + BLOCK] = _B ^ key[1]
            lanes[lane + 2 * BLOCK] = _C ^ key[0]
            lanes[lane + 3 * BLOCK] = _D ^ key[1]
        for column in range(length // 8 + 1):
            load_words(words, begin, rows, column, length, lanes)
            absorb(lanes)
        finish(lanes)
        hashes[begin : begin + rows] = lanes[4 * BLOCK : 4 * BLOCK + rows]
    return hashes


@njit(**_options)
def load_words(words, begin, rows, column, length, lanes):
    """Copies one word of each row of a block; the last one has the length in its highest byte."""
    tail = np.uint64(0)
    if column == length // 8:
        tail = np.uint64(length & 0xFF) << np.uint64(56)
    inside = column < words.shape[1]
    for row in range(rows):
        word = words[begin + row, column] if inside else np.uint64(0)
        lanes[4 * BLOCK + row] = word | tail


@njit(**_options)
def absorb(lanes):
    """Takes one word of each lane into its state."""
    for lane in range(BLOCK):
        word = lanes[lane + 4 * BLOCK]
        a, b = lanes[lane], lanes[lane + BLOCK]
        c, d = lanes[lane + 2 * BLOCK], lanes[lane + 3 * BLOCK] ^ word
        a, b, c, d = mixed(a, b, c, d)
        a, b, c, d = mixed(a, b, c, d)
        lanes[lane], lanes[lane + BLOCK] = a ^ word, b
        lanes[lane + 2 * BLOCK], lanes[lane + 3 * BLOCK] = c, d


@njit(**_options)
def finish(lanes):
    """Writes the hashes of a block in place of its words."""
    for lane in range(BLOCK):
        a, b = lanes[lane], lanes[lane + BLOCK]
        c, d = lanes[lane + 2 * BLOCK] ^ np.uint64(0xFF), lanes[lane + 3 * BLOCK]
        a, b, c, d = mixed(a, b, c, d)
        a, b, c, d = mixed(a, b, c, d)
        a, b, c, d = mixed(a, b, c, d)
        a, b, c, d = mixed(a, b, c, d)
        lanes[lane + 4 * BLOCK] = a ^ b ^ c ^ d
