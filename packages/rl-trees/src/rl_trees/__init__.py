"""Maps keyed by tensors, forests of rollouts, and tree search."""

from rl_trees.forest.forest import MCTSForest
from rl_trees.forest.tree import Tree
from rl_trees.hashing.binary_to_decimal import BinaryToDecimal
from rl_trees.hashing.hash_to_int import HashToInt
from rl_trees.hashing.random_projection_hash import RandomProjectionHash
from rl_trees.hashing.sip_hash import SipHash
from rl_trees.map.query_module import QueryModule
from rl_trees.map.tensor_map import TensorMap
from rl_trees.map.tensordict_map import TensorDictMap
from rl_trees.search.model import SearchModel, SearchStep
from rl_trees.search.rules import EXP3, PUCT, UCB1, GumbelHalving, SelectionRule
from rl_trees.search.trees import MCTSTrees, SearchLeaves

__all__ = [
    "EXP3",
    "PUCT",
    "UCB1",
    "BinaryToDecimal",
    "GumbelHalving",
    "HashToInt",
    "MCTSForest",
    "MCTSTrees",
    "QueryModule",
    "RandomProjectionHash",
    "SearchLeaves",
    "SearchModel",
    "SearchStep",
    "SelectionRule",
    "SipHash",
    "TensorDictMap",
    "TensorMap",
    "Tree",
]
