"""Edges that leave nodes, as linked lists in flat arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.types import Ints

NONE = -1


class EdgeLinks:
    """The edges that leave each node, in the order in which they came."""

    # A node has its first and last edge and how many there are, an edge the one that follows it at
    # the same node. So the cost depends on how many edges are added or read, not on how many exist.
    # first: int64 `[nodes]`, -1 if no edge leaves a node.
    # degree: int64 `[nodes]`, how many do.
    # sibling: int64 `[edges]`, the next edge of the same node, or -1.

    def __init__(self) -> None:
        self.first = np.empty(0, np.int64)
        self.last = np.empty(0, np.int64)
        self.degree = np.empty(0, np.int64)
        self.sibling = np.empty(0, np.int64)

    def append(self, begin: int, parents: Ints, nodes: int) -> None:
        """Adds the edges `begin`, `begin + 1`, ... that leave some nodes."""
        # parents: int64 `[n]`.
        self.first = grown(self.first, nodes, NONE)
        self.last = grown(self.last, nodes, NONE)
        self.degree = grown(self.degree, nodes, 0)
        self.sibling = grown(self.sibling, begin + len(parents), NONE)
        order = np.argsort(parents, kind="stable")
        edges, ordered = begin + order, parents[order]
        heads = np.ones(len(edges), np.bool_)  # the first new edge of a node
        heads[1:] = ordered[1:] != ordered[:-1]
        followers = np.flatnonzero(~heads)
        self.sibling[edges[followers - 1]] = edges[followers]
        leaders, owners = edges[heads], ordered[heads]
        known = self.last[owners] != NONE
        self.sibling[self.last[owners[known]]] = leaders[known]
        self.first[owners[~known]] = leaders[~known]
        self.last[ordered] = edges  # of several the one written last
        np.add.at(self.degree, parents, 1)

    def of(self, nodes: Ints) -> tuple[Ints, Ints]:
        """The edges of some nodes, one node after the other, and how many each of them has."""
        counts = self.degree[nodes]
        edges = np.empty(int(counts.sum()), np.int64)
        place, current = np.cumsum(counts) - counts, self.first[nodes]
        while (left := np.flatnonzero(current != NONE)).size:
            edges[place[left]] = current[left]
            place[left] += 1
            current[left] = self.sibling[current[left]]
        return edges, counts


def grown(array: NDArray[Any], size: int, fill: float) -> NDArray[Any]:
    """An array with room for so many entries; room at least doubles."""
    if size <= len(array):
        return array
    larger = np.full(max(size, 2 * len(array)), fill, array.dtype)
    larger[: len(array)] = array
    return larger
