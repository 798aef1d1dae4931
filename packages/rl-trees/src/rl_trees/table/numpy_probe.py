"""Probes of a table of keys in numpy, one step of all keys at a time."""

from __future__ import annotations

import numpy as np

from rl_tensordict.types import Flags, Ints, Words

EMPTY = -1
SPREAD = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: the upper bits of a product depend on all bits of the hash."""

FACTOR = 0xFF51AFD7ED558CCD
"""An odd number whose multiples differ in the upper bits, of the finaliser of MurmurHash3."""


def hash_words(words: Words) -> Words:
    """Hashes keys `[N, W]`: each word is mixed in by xor, multiplication and a shifted xor.

    Every step is one to one, so different keys of one word have different hashes.
    """
    hashes = np.full(len(words), words.shape[1] + 1, np.uint64)
    for column in words.T:
        hashes ^= column
        hashes *= np.uint64(FACTOR)
        hashes ^= hashes >> np.uint64(32)
    return hashes


def first_slots(hashes: Words, slots: int) -> Ints:
    """Where the search of each key begins."""
    shift = 65 - slots.bit_length()  # slots are a power of two, at least 2
    return ((hashes * np.uint64(SPREAD)) >> np.uint64(shift)).astype(np.int64)


def find(slots: Ints, stored: Words, stored_hashes: Words, words: Words, hashes: Words) -> Ints:
    """The rows of keys, and -1 for keys that are not there."""
    found = np.full(len(words), EMPTY, np.int64)
    place, mask = first_slots(hashes, len(slots)), len(slots) - 1
    pending = np.arange(len(words))
    while pending.size:
        rows = slots[place[pending]]
        occupied = rows != EMPTY
        pending, rows = pending[occupied], rows[occupied]
        same = stored_hashes[rows] == hashes[pending]
        same[same] = (stored[rows[same]] == words[pending[same]]).all(1)
        found[pending[same]] = rows[same]
        pending = pending[~same]
        place[pending] = (place[pending] + 1) & mask
    return found


def insert(
    slots: Ints, stored: Words, stored_hashes: Words, count: int, words: Words, hashes: Words
) -> tuple[Ints, Flags]:
    """Adds keys in the order of the batch; `stored` has room for them."""
    # Equal keys take the same steps, so the first of them is the one that claims a slot. A claim is
    # -2 minus the place in the batch until the number of its row is known.
    rows = np.full(len(words), EMPTY, np.int64)
    twins = np.full(len(words), EMPTY, np.int64)  # the place of an equal key that was first
    place, mask = first_slots(hashes, len(slots)), len(slots) - 1
    added = np.zeros(len(words), np.bool_)
    pending = np.arange(len(words))
    while pending.size:
        at = place[pending]
        empty = slots[at] == EMPTY
        claims = (-2 - pending[empty])[::-1]
        slots[at[empty][::-1]] = claims  # of several claims the one written last, the first key
        content = slots[at]
        won = content == -2 - pending
        added[pending[won]] = True
        others = ~won
        pending, content = pending[others], content[others]
        same = _equal(content, stored, stored_hashes, words, hashes, pending)
        old = same & (content >= 0)
        rows[pending[old]] = content[old]
        new = same & (content < 0)
        twins[pending[new]] = -2 - content[new]
        pending = pending[~same]
        place[pending] = (place[pending] + 1) & mask
    firsts = added.nonzero()[0]
    rows[firsts] = count + np.arange(len(firsts))
    slots[place[firsts]] = rows[firsts]
    stored[count : count + len(firsts)] = words[firsts]
    stored_hashes[count : count + len(firsts)] = hashes[firsts]
    repeated = twins >= 0
    rows[repeated] = rows[twins[repeated]]
    return rows, added


def _equal(
    content: Ints, stored: Words, stored_hashes: Words, words: Words, hashes: Words, places: Ints
) -> Flags:
    """Whether the keys in slots, or the keys that claim them, equal the batch's."""
    same = np.empty(len(content), np.bool_)
    for claimed in (False, True):
        chosen = ((content < 0) == claimed).nonzero()[0]
        keys, their = (words, hashes) if claimed else (stored, stored_hashes)
        index = -2 - content[chosen] if claimed else content[chosen]
        equal = their[index] == hashes[places[chosen]]
        equal[equal] = (keys[index[equal]] == words[places[chosen[equal]]]).all(1)
        same[chosen] = equal
    return same


def place_rows(slots: Ints, hashes: Words) -> None:
    """Writes the rows 0, 1, ... of known different keys into empty slots."""
    place, mask = first_slots(hashes, len(slots)), len(slots) - 1
    pending = np.arange(len(hashes))
    while pending.size:
        at = place[pending]
        empty = slots[at] == EMPTY
        slots[at[empty]] = pending[empty]
        pending = pending[slots[at] != pending]
        place[pending] = (place[pending] + 1) & mask
