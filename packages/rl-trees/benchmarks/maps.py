"""Time a map from 10,000 keys to values, with numba and without.

Run with `nox -s "bench(rl-trees)"`. Keys are rows of 16 floats, as wide as the peer hashes without
a projection. Every turn writes into a new map that holds one other key already. Floors are the
loops alone in the same turns, on keys as words: no tensordict is read, checked or made.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from bench import medians_us, report, session
from tensordict import TensorDict
from torchrl.data import TensorDictMap as TheirMap

from rl_layout.compiled import forget_imports
from rl_trees import QueryModule, TensorDictMap
from rl_trees.table.key_table import KeyTable

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)  # the peer logs every storage
LOOPS = ("rl_trees.table.numba_probe", "rl_trees.hashing.numba_rounds")
COUNT = 10_000
KEYS = TensorDict({"observation": torch.randn(COUNT, 16)}, [COUNT])
OTHER = TensorDict({"observation": torch.full((1, 16), 9.0)}, [1])
VALUES = TensorDict({"value": torch.randn(COUNT, 4)}, [COUNT])


def filled(cls: Any) -> Any:
    """A map that holds one key."""
    made = cls.from_tensordict_pair(KEYS, VALUES, ["observation"], max_size=2 * COUNT)
    made[OTHER.copy()] = VALUES[:1]
    return made


def fresh(cls: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """What makes a new map, and what writes all keys into it; the peer changes its argument."""
    held: list[Any] = []

    def prepare() -> None:
        held[:] = [filled(cls)]

    def write() -> None:
        held[0][KEYS.copy()] = VALUES

    return prepare, write


class Floors:
    """What maps must do at least: their loops alone."""

    def __init__(self, query: QueryModule) -> None:
        self.words, self.table = query.encode(KEYS).words, query.table
        self.rows = np.zeros((2 * COUNT, 2), np.int64)
        self.values = VALUES["value"].numpy().view(np.int64)

    def set_new(self) -> None:
        """Keys into a new table, and a copy of values."""
        fresh = KeyTable(self.words.shape[1])
        fresh.insert(self.words, fresh.hash(self.words))
        self.values.copy()

    def set_known(self) -> None:
        """Keys that are found, and values scattered."""
        rows, _ = self.table.insert(self.words, self.table.hash(self.words))
        self.rows.view("V16")[rows] = self.values.view("V16")

    def get(self) -> None:
        """Keys that are found, and values gathered."""
        self.rows.take(self.table.find(self.words, self.table.hash(self.words)), 0)


def compare(work: str, calls: Sequence[Callable[[], object]], **options: Any) -> None:
    """Prints ours beside the peer, and what the loops take in the same turns."""
    ours, theirs, floor = medians_us(15, *calls, **options)
    report(work, ours, theirs, note=f"the loops alone {floor:,.1f} us, {theirs / floor:,.1f} x")


def main() -> None:
    """All figures."""
    with session():
        for name in ("with numba", "without numba"):
            if name == "without numba":
                sys.modules.update(dict.fromkeys(LOOPS))  # their import fails from here on
                forget_imports()
            maps = [filled(TensorDictMap), filled(TheirMap)]
            for made in maps:
                made[KEYS.copy()] = VALUES
            floors = Floors(maps[0].query_module)
            before, calls = zip(fresh(TensorDictMap), fresh(TheirMap), strict=True)
            compare(
                f"set {COUNT:,} new keys, {name}",
                [*calls, floors.set_new],
                before=[*before, lambda: None],
            )
            again = [lambda made=made: made.__setitem__(KEYS.copy(), VALUES) for made in maps]
            compare(f"set {COUNT:,} known keys, {name}", [*again, floors.set_known])
            reads = [lambda made=made: made[KEYS.copy()] for made in maps]
            compare(f"get {COUNT:,} keys, {name}", [*reads, floors.get])


if __name__ == "__main__":
    main()
