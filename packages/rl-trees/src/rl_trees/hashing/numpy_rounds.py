"""SipHash-2-4 of many rows in numpy, one operation on all rows at a time."""

from __future__ import annotations

import numpy as np

from rl_tensordict.types import Words

INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
"""The words that the key is mixed into; "somepseudorandomlygeneratedbytes" in ASCII."""


def hash_words(words: Words, length: int, key: Words) -> Words:
    """Hashes rows of padded words."""
    # words: uint64 `[N, W]`, the bytes of each row and zeros.
    # key: uint64 `[2]`.
    # returns: uint64 `[N]`.
    rows, whole = len(words), length // 8
    state = [np.full(rows, word, np.uint64) for word in INITIAL]
    for place, part in enumerate((0, 1, 0, 1)):
        state[place] ^= key[part]
    spare = np.empty(rows, np.uint64)
    for column in range(whole + 1):
        # the last word holds the bytes that are left, and in its highest byte the length
        word = words[:, column] if column < words.shape[1] else np.uint64(0)
        if column == whole:
            word = word | np.uint64((length & 0xFF) << 56)
        state[3] ^= word
        _mix(state, spare, 2)
        state[0] ^= word
    state[2] ^= np.uint64(0xFF)
    _mix(state, spare, 4)
    hashes: Words = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashes


def _mix(state: list[Words], spare: Words, times: int) -> None:
    """Applies the SipRound in place."""
    a, b, c, d = state
    for _ in range(times):
        a += b
        _rotate(b, 13, spare)
        b ^= a
        _rotate(a, 32, spare)
        c += d
        _rotate(d, 16, spare)
        d ^= c
        a += d
        _rotate(d, 21, spare)
        d ^= a
        c += b
        _rotate(b, 17, spare)
        b ^= c
        _rotate(c, 32, spare)


def _rotate(words: Words, bits: int, spare: Words) -> None:
    """Rotates words to the left in place."""
    np.left_shift(words, np.uint64(bits), out=spare)
    np.right_shift(words, np.uint64(64 - bits), out=words)
    np.bitwise_or(words, spare, out=words)
