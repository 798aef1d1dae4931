"""Fuzzed parts of rl-slabs that have no public name: slabs, lanes and the rows of both."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from fuzz_pools import Pool, each, steps
from tensordict import TensorDict

from rl_slabs import Arrays, Lanes, LazyFile, RowSchema, Slab

LEAVES = {"reward": (torch.float32, (1,)), "pixels": (torch.uint8, (20, 20))}
SCHEMA = RowSchema(LEAVES)


def lane():
    """A ring of eight rows, with a span reserved."""
    made = Lanes(Slab.private(SCHEMA, 16, lanes=2)).claim()
    made.reserve(2)
    return made


def lanes() -> Lanes:
    """Two rings, one of which has published rows."""
    made = Lanes(Slab.private(SCHEMA, 16, lanes=2))
    first = made.claim()
    first.reserve(3)
    first.publish(3)
    return made


# the constructors take what their class methods have made and checked
MADE = "is made by its class methods, or by Lanes"
SKIP = dict.fromkeys(
    ["Slab", "Rows", "Arrays", "Lane", "LaneState", "Span", "Window", "LazyFile"], MADE
)
CALLS = [
    ("RowSchema.from_dict", lambda: RowSchema.from_dict),
    ("RowSchema.from_spec", lambda: RowSchema.from_spec),
    ("RowSchema.from_tensordict", lambda: RowSchema.from_tensordict),
    ("RowSchema()", lambda: SCHEMA),
    ("Slab.private", lambda: Slab.private),
    ("Slab.mapped", lambda: Slab.mapped),
    ("Slab.open", lambda: Slab.open),
    ("Slab()", lambda: Slab.private(SCHEMA, 6)),
    ("Arrays.private", lambda: Arrays.private),
    ("Arrays.open", lambda: Arrays.open),
    ("Slab.in_file", lambda: partial(Slab.in_file, LazyFile.shared("a test"))),
    ("Lanes()", lanes),
    ("Lane()", lane),
    ("Window()", lambda: lanes().window()),
]

ROWS: Pool = [
    *each(slice(0, 2), slice(None), 0),
    lambda: torch.tensor([1, 4]),
    lambda: np.array([0, 1]),
]
DATA: Pool = [
    lambda: TensorDict(
        {"reward": torch.ones(2, 1), "pixels": torch.zeros(2, 20, 20, dtype=torch.uint8)}, [2]
    ),
    steps,
]
POOLS: dict[str, Pool] = {
    "schema": each(SCHEMA),
    "leaves": [lambda: dict(LEAVES)],
    "layout": [lambda: {"a": (np.dtype("int64"), (3,))}],
    "capacity": each(1, 5, 16),
    "rows": ROWS,
    "numbers": [lambda: np.array([0, 1]), lambda: torch.tensor([2, 0])],
    "tensordict": DATA,
    "data": DATA,
    "values": DATA,
    "plain": [SCHEMA.to_dict] if hasattr(SCHEMA, "to_dict") else [dict],
}
