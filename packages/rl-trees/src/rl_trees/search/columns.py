"""The state of many searches as flat arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SearchColumns(NamedTuple):
    """Nodes and edges of B trees of at most N nodes with A actions."""

    # An edge is a node and an action, whether there is a child or not. Rows of nodes are filled as
    # nodes are added, so nothing has to be cleared but the root. What is known of a node's edges
    # lies side by side: a simulation reads all of it, in few pages.

    numbers: NDArray[np.float64]  # [B, N, 7, A], see the properties below
    counts: NDArray[np.int32]  # [B, N, 3, A]
    legal: NDArray[np.bool_]  # [B, N, A]
    above: NDArray[np.int32]  # [B, N, 2], parent, and the action that led to a node
    done: NDArray[np.bool_]  # [B, N]
    value: NDArray[np.float64]  # [B, N], as the caller estimated it
    size: NDArray[np.int64]  # [B], how many nodes there are
    bounds: NDArray[np.float64]  # [B, 2], the least and the greatest mean of any edge
    noise: NDArray[np.float64]  # [B, A], Gumbel noise at the roots
    seeds: NDArray[np.uint64]  # [B], of the draws of EXP3
    plan: NDArray[np.int32]  # [A + 1, S], visits that a simulation looks for, by actions considered
    scratch: NDArray[np.float64]  # [3, A], of one node at a time

    @property
    def totals(self) -> NDArray[np.float64]:
        """`[B, N, A]`, the sum of the returns that were backed up."""
        return self.numbers[:, :, TOTALS]

    @property
    def means(self) -> NDArray[np.float64]:
        """`[B, N, A]`, totals by visits, 0 without visits."""
        return self.numbers[:, :, MEANS]

    @property
    def prior(self) -> NDArray[np.float64]:
        """`[B, N, A]`, probabilities of actions."""
        return self.numbers[:, :, PRIOR]

    @property
    def logits(self) -> NDArray[np.float64]:
        """`[B, N, A]`, their logarithms."""
        return self.numbers[:, :, LOGITS]

    @property
    def reward(self) -> NDArray[np.float64]:
        """`[B, N, A]`."""
        return self.numbers[:, :, REWARD]

    @property
    def discount(self) -> NDArray[np.float64]:
        """`[B, N, A]`, what the child's return is multiplied by."""
        return self.numbers[:, :, DISCOUNT]

    @property
    def weights(self) -> NDArray[np.float64]:
        """`[B, N, A]`, logarithms of the weights of EXP3."""
        return self.numbers[:, :, WEIGHTS]

    @property
    def child(self) -> NDArray[np.int32]:
        """`[B, N, A]`, the node that an edge leads to, or -1."""
        return self.counts[:, :, CHILD]

    @property
    def visits(self) -> NDArray[np.int32]:
        """`[B, N, A]`, backups through an edge."""
        return self.counts[:, :, VISITS]

    @property
    def pending(self) -> NDArray[np.int32]:
        """`[B, N, A]`, selections that are not backed up yet."""
        return self.counts[:, :, PENDING]

    @property
    def parent(self) -> NDArray[np.int32]:
        """`[B, N]`."""
        return self.above[:, :, 0]

    @property
    def action(self) -> NDArray[np.int32]:
        """`[B, N]`, the action that led to a node."""
        return self.above[:, :, 1]


class Rule(NamedTuple):
    """A rule of selection as the loops take it."""

    kind: int
    parameters: NDArray[np.float64]  # [5], the last one the loss of a pending selection


TOTALS, MEANS, PRIOR, LOGITS, REWARD, DISCOUNT, WEIGHTS = range(7)
CHILD, VISITS, PENDING = range(3)
PUCT_RULE, UCB1_RULE, EXP3_RULE, GUMBEL_RULE = range(4)
LOSS = 4
MIX = 0xFF51AFD7ED558CCD
"""An odd factor: draws of EXP3 are hashes of tree, node and number of selections."""


def allocate(trees: int, nodes: int, actions: int, plan: NDArray[np.int32]) -> SearchColumns:
    """Columns for so many trees, without any node."""
    nodes_of, actions_of = (trees, nodes), (trees, actions)

    def of(shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        return np.zeros(shape, dtype)

    return SearchColumns(
        numbers=of((*nodes_of, 7, actions)),
        counts=of((*nodes_of, 3, actions), np.int32),
        legal=of((*nodes_of, actions), np.bool_),
        above=of((*nodes_of, 2), np.int32),
        done=of(nodes_of, np.bool_),
        value=of(nodes_of),
        size=of((trees,), np.int64),
        bounds=of((trees, 2)),
        noise=of(actions_of),
        seeds=of((trees,), np.uint64),
        plan=plan,
        scratch=of((3, actions)),
    )
