"""Time a map from 10,000 keys to values, with numba and without.

Run with `nox -s "bench(rl-trees)"`. Keys are rows of 16 floats, as wide as the peer hashes without
a projection. Every turn writes into a new map that holds one other key already.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict
from torchrl.data import TensorDictMap as TheirMap

from rl_layout.compiled import forget_imports
from rl_trees import TensorDictMap

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


def main() -> None:
    """All figures."""
    with session():
        for name in ("with numba", "without numba"):
            if name == "without numba":
                sys.modules.update(dict.fromkeys(LOOPS))  # their import fails from here on
                forget_imports()
            before, calls = zip(fresh(TensorDictMap), fresh(TheirMap), strict=True)
            report(f"set {COUNT:,} new keys, {name}", *medians_us(15, *calls, before=before))
            maps = [filled(TensorDictMap), filled(TheirMap)]
            for made in maps:
                made[KEYS.copy()] = VALUES
            again = [lambda made=made: made.__setitem__(KEYS.copy(), VALUES) for made in maps]
            report(f"set {COUNT:,} known keys, {name}", *medians_us(15, *again))
            reads = [lambda made=made: made[KEYS.copy()] for made in maps]
            report(f"get {COUNT:,} keys, {name}", *medians_us(15, *reads))
            query = maps[0].query_module
            (floor,) = medians_us(15, lambda query=query: query.table.find(*query.encode(KEYS)))
            report(f"the floor: {COUNT:,} keys hashed and found, {name}", floor)


if __name__ == "__main__":
    main()
