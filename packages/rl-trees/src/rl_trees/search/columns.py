"""The state of many searches as flat arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SearchColumns(NamedTuple):
    """Nodes and edges of B trees of at most N nodes with A actions."""

    # An edge is a node and an action, whether there is a child or not. Rows of nodes are filled as
    # nodes are added, so nothing has to be cleared but the root.

    child: NDArray[np.int32]  # [B, N, A], the node that an edge leads to, or -1
    visits: NDArray[np.int32]  # [B, N, A], backups through an edge
    pending: NDArray[np.int32]  # [B, N, A], selections that are not backed up yet
    totals: NDArray[np.float64]  # [B, N, A], the sum of the returns that were backed up
    prior: NDArray[np.float64]  # [B, N, A], probabilities of actions
    logits: NDArray[np.float64]  # [B, N, A], their logarithms
    legal: NDArray[np.bool_]  # [B, N, A]
    reward: NDArray[np.float64]  # [B, N, A]
    discount: NDArray[np.float64]  # [B, N, A], what the child's return is multiplied by
    weights: NDArray[np.float64]  # [B, N, A], logarithms of the weights of EXP3
    parent: NDArray[np.int32]  # [B, N]
    action: NDArray[np.int32]  # [B, N], the action that led to a node
    done: NDArray[np.bool_]  # [B, N]
    value: NDArray[np.float64]  # [B, N], as the caller estimated it
    size: NDArray[np.int64]  # [B], how many nodes there are
    bounds: NDArray[np.float64]  # [B, 2], the least and the greatest mean of any edge
    noise: NDArray[np.float64]  # [B, A], Gumbel noise at the roots
    seeds: NDArray[np.uint64]  # [B], of the draws of EXP3
    plan: NDArray[np.int32]  # [A + 1, S], visits that a simulation looks for, by actions considered
    scratch: NDArray[np.float64]  # [3, A], of one node at a time


class Rule(NamedTuple):
    """A rule of selection as the loops take it."""

    kind: int
    parameters: NDArray[np.float64]  # [5], the last one the loss of a pending selection


PUCT_RULE, UCB1_RULE, EXP3_RULE, GUMBEL_RULE = range(4)
LOSS = 4
MIX = 0xFF51AFD7ED558CCD
"""An odd factor: draws of EXP3 are hashes of tree, node and number of selections."""


def allocate(trees: int, nodes: int, actions: int, plan: NDArray[np.int32]) -> SearchColumns:
    """Columns for so many trees, without any node."""
    edges, rows = (trees, nodes, actions), (trees, nodes)

    def of(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return np.zeros(shape, dtype)

    return SearchColumns(
        child=of(edges, np.int32),
        visits=of(edges, np.int32),
        pending=of(edges, np.int32),
        totals=of(edges, np.float64),
        prior=of(edges, np.float64),
        logits=of(edges, np.float64),
        legal=of(edges, np.bool_),
        reward=of(edges, np.float64),
        discount=of(edges, np.float64),
        weights=of(edges, np.float64),
        parent=of(rows, np.int32),
        action=of(rows, np.int32),
        done=of(rows, np.bool_),
        value=of(rows, np.float64),
        size=of((trees,), np.int64),
        bounds=of((trees, 2), np.float64),
        noise=of((trees, actions), np.float64),
        seeds=of((trees,), np.uint64),
        plan=plan,
        scratch=of((3, actions), np.float64),
    )
