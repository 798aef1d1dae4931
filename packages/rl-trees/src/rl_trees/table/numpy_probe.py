"""Probes of a table of keys in numpy, one step of all keys at a time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rl_tensordict.types import Flags, Ints, Words

UNKNOWN = -1
"""The row of a key that is not there."""

EMPTY = 0
"""What a slot without a row holds."""

ROW = 2**40 - 1
"""The bits of a slot that are 1 and the number of a row; the others are those of its hash."""

SPREAD = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: the upper bits of a product depend on all bits of the hash."""


@lru_cache(maxsize=64)
def factors_of(width: int) -> Words:
    """Odd factors of the words of a key, by the generator SplitMix64."""
    factors = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(SPREAD)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        factors = (factors ^ (factors >> np.uint64(shift))) * np.uint64(factor)
    return (factors ^ (factors >> np.uint64(31))) | np.uint64(1)


def hash_words(words: Words, factors: Words) -> Words:
    """Hashes keys `[N, W]`: the sum of words times factors, and then its bits mixed.

    Upper halves are added to lower ones first, as the upper bits of a word would reach only those
    of the sum. Words are taken in any order, or several at a time.
    """
    hashes = np.full(len(words), len(factors), np.uint64)
    for column, factor in zip(words.T, factors, strict=True):
        folded = column >> np.uint64(32)
        folded ^= column
        folded *= factor
        hashes += folded
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(SPREAD)
    hashes ^= hashes >> np.uint64(32)
    return hashes


def first_slots(hashes: Words, slots: int) -> Ints:
    """Where the search of each key begins."""
    shift = 65 - slots.bit_length()  # slots are a power of two, at least 2
    return ((hashes * np.uint64(SPREAD)) >> np.uint64(shift)).astype(np.int64)


def find(slots: Words, stored: Words, words: Words, hashes: Words) -> Ints:
    """The rows of keys, and -1 for keys that are not there."""
    found = np.full(len(words), UNKNOWN, np.int64)
    place, mask = first_slots(hashes, len(slots)), len(slots) - 1
    pending = np.arange(len(words))
    while pending.size:
        content = slots[place[pending]]
        occupied = content != EMPTY
        pending, content = pending[occupied], content[occupied]
        same = _prints(content) == _prints(hashes[pending])
        rows = _rows(content[same])
        same[same] = equal = (stored[rows] == words[pending[same]]).all(1)
        found[pending[same]] = rows[equal]
        pending = pending[~same]
        place[pending] = (place[pending] + 1) & mask
    return found


def insert(
    slots: Words, stored: Words, stored_hashes: Words, count: int, words: Words, hashes: Words
) -> tuple[Ints, Flags]:
    """Adds keys in the order of the batch; `stored` has room for them."""
    # Equal keys take the same steps, so the first of them is the one that claims a slot. A claim
    # has `count` and the place in the batch as its row, until the number of its row is known.
    rows = np.full(len(words), UNKNOWN, np.int64)
    twins = np.full(len(words), UNKNOWN, np.int64)  # the place of an equal key that was first
    place, mask = first_slots(hashes, len(slots)), len(slots) - 1
    prints = _prints(hashes)
    claims = _contents(prints, count + np.arange(len(words)))
    added = np.zeros(len(words), np.bool_)
    pending = np.arange(len(words))
    while pending.size:
        at = place[pending]
        empty = slots[at] == EMPTY
        # of several claims the one written last, the first key
        slots[at[empty][::-1]] = claims[pending[empty][::-1]]
        content = slots[at]
        won = content == claims[pending]
        added[pending[won]] = True
        others = ~won
        pending, content = pending[others], content[others]
        same = _prints(content) == prints[pending]
        known = _rows(content)
        old, new = same & (known < count), same & (known >= count)
        same[old] = (stored[known[old]] == words[pending[old]]).all(1)
        same[new] = (words[known[new] - count] == words[pending[new]]).all(1)
        old, new = old & same, new & same
        rows[pending[old]] = known[old]
        twins[pending[new]] = known[new] - count
        pending = pending[~same]
        place[pending] = (place[pending] + 1) & mask
    firsts = added.nonzero()[0]
    rows[firsts] = count + np.arange(len(firsts))
    slots[place[firsts]] = _contents(prints[firsts], rows[firsts])
    stored[count : count + len(firsts)] = words[firsts]
    stored_hashes[count : count + len(firsts)] = hashes[firsts]
    repeated = twins >= 0
    rows[repeated] = rows[twins[repeated]]
    return rows, added


def place_rows(slots: Words, hashes: Words) -> None:
    """Writes the rows 0, 1, ... of known different keys into empty slots."""
    place, mask = first_slots(hashes, len(slots)), len(slots) - 1
    contents = _contents(_prints(hashes), np.arange(len(hashes)))
    pending = np.arange(len(hashes))
    while pending.size:
        at = place[pending]
        empty = slots[at] == EMPTY
        slots[at[empty]] = contents[pending[empty]]
        pending = pending[slots[at] != contents[pending]]
        place[pending] = (place[pending] + 1) & mask


def latest(rows: Ints, scratch: Ints) -> Flags:
    """Which places of a batch are the last ones with their row."""
    places = np.arange(len(rows))
    scratch[rows] = places  # of several places of a row the last one is left
    last: Flags = scratch[rows] == places
    return last


def _prints(contents: Words) -> Words:
    """The bits of slots or hashes that are compared before keys are."""
    prints: Words = contents & ~np.uint64(ROW)
    return prints


def _contents(prints: Words, rows: Ints) -> Words:
    """What slots with these rows hold."""
    contents: Words = prints | (rows + 1).astype(np.uint64)
    return contents


def _rows(contents: Words) -> Ints:
    """The rows in slots, -1 in empty ones."""
    return (contents & np.uint64(ROW)).astype(np.int64) - 1
