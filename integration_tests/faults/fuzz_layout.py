"""Fuzzed parts of rl-layout that have no public name: codecs, and agents that carry states."""

from __future__ import annotations

import torch
from fuzz_pools import Pool, each, steps
from tensordict.nn import TensorDictModule
from torch import nn

from rl_layout import (
    Flat2TED,
    Nested2TED,
    Segments,
    TED2Flat,
    TED2Nested,
    check_layout,
    draw_layout,
    set_recurrent_mode,
)


def cell() -> TensorDictModule:
    """A network that carries its state under one key."""
    return TensorDictModule(nn.GRUCell(2, 3), ["x", "h"], [("next", "h")])


CALLS = [
    ("TED2Flat", lambda: TED2Flat),
    ("TED2Nested", lambda: TED2Nested),
    ("TED2Flat()", TED2Flat),
    ("TED2Nested()", TED2Nested),
    ("Flat2TED()", Flat2TED),
    ("Nested2TED()", Nested2TED),
    ("Segments.of", lambda: Segments.of),
    ("Segments.from_ids", lambda: Segments.from_ids),
    ("Segments.from_lengths", lambda: Segments.from_lengths),
    ("Segments()", lambda: Segments.of(steps())),
    ("Segments() with gaps", lambda: Segments.from_ids(torch.tensor([4, 4, -1, 6, 6, 6]))),
    ("LayoutReport()", lambda: check_layout(steps())),
    ("LayoutDrawing()", lambda: draw_layout(steps())),
    ("set_recurrent_mode()", lambda: set_recurrent_mode(True)),
]
POOLS: dict[str, Pool] = {
    "networks": [
        dict,
        lambda: {"actor": cell(), "critic": nn.Linear(3, 2)},
        lambda: {"actor": cell(), "critic": cell()},
        lambda: nn.ModuleDict({"actor": cell()}),
    ],
    "default_states": [
        lambda: None,
        lambda: {"observation": 0.0},
        lambda: {"action": torch.zeros(2)},
    ],
    "data": [
        steps,
        lambda: steps((2, 3)),
        lambda: TED2Flat()(steps()),
        lambda: TED2Nested()(steps()),
    ],
    "max_trajectories": each(1, 2, 40),
    "prefix": each(None, "collector", ("a", "b")),
    "trajectory_key": each(None, ("collector", "traj_ids")),
    "done_key": each(None, "done"),
}
CHANGES = {
    "step_mdp": "writes into next_tensordict where one is given",
    "Flat2TED().__call__": "writes into out where one is given",
    "Nested2TED().__call__": "the same",
}
