"""A table that numbers keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_layout.internals import load_compiled
from rl_tensordict.types import Flags, Ints, Words
from rl_trees.table import numpy_probe
from rl_trees.table.numpy_probe import UNKNOWN

_NUMBA = "rl_trees.table.numba_probe"
_LEAST_SLOTS = 16


class KeyTable:
    """Numbers different keys 0, 1, ... in the order in which they come."""

    # Open addressing with linear probing: a slot holds a row and some bits of its hash, and a row
    # the whole key, which is compared. A hash only says where the search begins, so equal hashes of
    # different keys cost time and nothing else. At most half of the slots are occupied.

    def __init__(self, width: int, max_size: int | None = None) -> None:
        self.width = width
        self.max_size = max_size
        self.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def words(self) -> Words:
        """The keys by row, uint64 `[n, width]`: a view until the next insert."""
        return self._words[: self._count]

    @property
    def hashes(self) -> Words:
        """The hashes of the keys by row, uint64 `[n]`: a view until the next insert."""
        return self._hashes[: self._count]

    def clear(self) -> None:
        """Forgets all keys."""
        slots: Words = np.zeros(_LEAST_SLOTS, np.uint64)
        self._count, self._slots = 0, slots  # on one line: no interrupt comes between them
        self._words: Words = np.empty((0, self.width), np.uint64)
        self._hashes: Words = np.empty(0, np.uint64)
        self._places: Ints = np.empty(0, np.int64)  # scratch of `latest`

    def hash(self, words: Words) -> Words:
        """Hashes of keys, uint64 `[N]`, equal on every machine."""
        # words: uint64 `[N, width]`.
        hashes: Words = self._probe.hash_words(words, numpy_probe.factors_of(self.width))
        return hashes

    def find(self, words: Words, hashes: Words) -> Ints:
        """The rows of keys, int64 `[N]`; -1 for keys that are not there."""
        # words: uint64 `[N, width]`.
        # hashes: uint64 `[N]`, a function of the words.
        found: Ints = self._probe.find(self._slots, self._words, words, hashes)
        return found

    def insert(self, words: Words, hashes: Words) -> tuple[Ints, Flags]:
        """Adds keys that are not there."""
        # words: uint64 `[N, width]`; equal keys are one.
        # hashes: uint64 `[N]`, a function of the words.
        # returns: The rows of all keys, int64 `[N]`, and which of them were added, bool `[N]`.
        if self.max_size is not None and self._count + len(words) > self.max_size:
            found = self.find(words, hashes)
            if not (unknown := found == UNKNOWN).any():
                return found, unknown
            self._require_room(words, hashes, unknown)
        self._reserve(self._count + len(words))
        before = self._count
        try:
            table = (self._slots, self._words, self._hashes, before)
            rows, added = self._probe.insert(*table, words, hashes)
            self._count = before + int(np.count_nonzero(added))
        except BaseException:  # slots may hold some of the rows
            self.truncate(before)
            raise
        return rows, added

    def latest(self, rows: Ints) -> Flags:
        """Which places of a batch are the last ones with their row, bool `[N]`."""
        # rows: int64 `[N]`, as `insert` returned them.
        latest: Flags = self._probe.latest(rows, self._places)
        return latest

    def truncate(self, count: int) -> None:
        """Forgets the keys of row `count` and after."""
        self._count = count
        self._slots = self._slots_of(len(self._slots))

    @property
    def _probe(self) -> Any:
        """The loops: compiled ones where numba is installed."""
        return load_compiled(_NUMBA) or numpy_probe

    def _require_room(self, words: Words, hashes: Words, unknown: Flags) -> None:
        """Raises where the keys that are unknown do not fit, before anything is written."""
        fresh = KeyTable(self.width)
        fresh.insert(words[unknown], hashes[unknown])
        if self._count + len(fresh) > (self.max_size or 0):
            raise RuntimeError(
                f"{self._count} of at most {self.max_size} keys are stored, and {len(fresh)} of "
                f"these {len(words)} are new: give max_size={self._count + len(fresh)} or more, or "
                "call clear() first. Nothing was written."
            )

    def _reserve(self, count: int) -> None:
        """Makes room for so many keys, or for `max_size` if that is less."""
        count = count if self.max_size is None else min(count, self.max_size)
        if count > len(self._words):
            room = max(count, 2 * len(self._words))
            self._hashes = _grown(self._hashes, self._count, room)
            self._places = np.empty(room, np.int64)
            self._words = _grown(self._words, self._count, room)  # last: it says that there is room
        slots = len(self._slots)
        while slots < 2 * count + 1:
            slots *= 2
        if slots > len(self._slots):
            self._slots = self._slots_of(slots)

    def _slots_of(self, count: int) -> Words:
        """So many slots with the rows there are."""
        slots: Words = np.zeros(count, np.uint64)  # all empty
        self._probe.place_rows(slots, self.hashes)
        return slots


def _grown(rows: NDArray[Any], count: int, room: int) -> NDArray[Any]:
    """The first rows in an array with room for more."""
    grown = np.empty((room, *rows.shape[1:]), rows.dtype)
    grown[:count] = rows[:count]
    return grown
