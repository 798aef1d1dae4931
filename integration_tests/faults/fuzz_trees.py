"""Fuzzed parts of rl-trees that have no public name: maps, forests and searches."""

from __future__ import annotations

import torch
from fuzz_pools import Pool, each
from tensordict import TensorDict

from rl_layout.synthetic import trajectories
from rl_trees import (
    BinaryToDecimal,
    GumbelHalving,
    HashToInt,
    MCTSForest,
    MCTSTrees,
    RandomProjectionHash,
    SipHash,
    TensorDictMap,
    Tree,
)


def filled_map() -> TensorDictMap:
    """Two keys with their values."""
    source = TensorDict({"key": torch.zeros(3, 2)}, [3])
    dest = TensorDict({"value": torch.zeros(3)}, [3])
    made = TensorDictMap.from_tensordict_pair(source, dest, in_keys=["key"])
    made[source] = dest
    return made


def forest() -> MCTSForest:
    """The rollouts of two episodes."""
    made = MCTSForest()
    for part in trajectories([3, 2]).split(3):
        made.extend(part)
    return made


def tree() -> Tree:
    """The tree of the first observation."""
    return forest().get_tree(trajectories([3])[:1].select("observation")[0])


CALLS = [
    ("TensorDictMap()", filled_map),
    ("MCTSForest()", forest),
    ("Tree()", tree),
    ("MCTSTrees()", lambda: MCTSTrees(2, 8, 3)),
    ("SipHash()", SipHash),
    ("HashToInt()", HashToInt),
    ("RandomProjectionHash()", lambda: RandomProjectionHash(n_components=4)),
    ("BinaryToDecimal()", lambda: BinaryToDecimal(4, "cpu", torch.int32)),
    ("GumbelHalving()", lambda: GumbelHalving(8)),
]
POOLS: Pool = {
    "num_simulations": each(1, 8),
    "num_trees": each(1, 3),
    "num_actions": each(2, 3),
}
SKIP = dict.fromkeys(
    ("SelectionRule", "TensorMap"), "abstract: Python names the methods that are missing"
)
