"""The part of a graph that is reached from one node, level by level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_tensordict.types import Flags, Ints
from rl_trees.forest.graph import Graph


@dataclass(frozen=True)
class Vertices:
    """Vertices and arcs of a tree, as flat columns."""

    # A vertex is a place where actions branch, where steps end, or, where steps are not merged,
    # every node. An arc is a run of edges from one vertex to another. Each vertex is expanded once,
    # however many arcs lead to it.
    # graph: Nodes and edges.
    # node: int64 `[V]`, the node at each vertex; vertex 0 is the root.
    # terminal: bool `[V]`, whether the step to it ended an episode.
    # first_arc: int64 `[V]`, the first arc that leaves it.
    # num_arcs: int64 `[V]`, how many leave it; they follow each other.
    # target: int64 `[A]`, the vertex that an arc leads to.
    # begin: int64 `[A + 1]`, where the edges of each arc begin in `path`.
    # path: int64, the edges of all arcs.
    # root_path: int64, the edges from the observation asked for to vertex 0.

    graph: Graph
    node: Ints
    terminal: Flags
    first_arc: Ints
    num_arcs: Ints
    target: Ints
    begin: Ints
    path: Ints
    root_path: Ints

    def edges_of(self, arc: int) -> Ints:
        """The edges of an arc; of arc -1 those before the root."""
        return self.root_path if arc < 0 else self.path[self.begin[arc] : self.begin[arc + 1]]


def vertices_from(graph: Graph, node: int, *, max_depth: int | None, compact: bool) -> Vertices:
    """Gathers what is reached from a node."""
    root = np.array([node])
    root_path, places, terminal = np.empty(0, np.int64), root, np.zeros(1, np.bool_)
    if compact and graph.links.degree[node] == 1:
        root_path, _ = _runs(graph, graph.links.of(root)[0], compact=True)
        places, terminal = graph.child[root_path[-1:]], graph.done[root_path[-1:]]
    # a node where one episode ends and another continues is two vertices
    known = np.full(2 * len(graph.nodes), -1, np.int64)
    levels, arcs, lengths, paths, targets = [places * 2 + terminal], [], [], [], []
    known[levels[0]] = 0
    count = 1
    while len(levels[-1]) and (max_depth is None or len(levels) <= max_depth):
        open_places = levels[-1][levels[-1] % 2 == 0] // 2
        edges, counts = graph.links.of(open_places)
        branches = np.zeros(len(levels[-1]), np.int64)
        branches[levels[-1] % 2 == 0] = counts
        path, sizes = _runs(graph, edges, compact=compact)
        last = path[np.cumsum(sizes) - 1]
        ends = graph.child[last] * 2 + graph.done[last]
        fresh = ends[np.sort(np.unique(ends, return_index=True)[1])]
        fresh = fresh[known[fresh] < 0]
        known[fresh] = count + np.arange(len(fresh))
        count += len(fresh)
        arcs.append(branches)
        lengths.append(sizes)
        paths.append(path)
        targets.append(known[ends])
        levels.append(fresh)
    every = np.concatenate(levels)
    num_arcs = _joined([*arcs, *[np.zeros(len(level), np.int64) for level in levels[len(arcs) :]]])
    return Vertices(
        graph,
        every // 2,
        every % 2 == 1,
        np.cumsum(num_arcs) - num_arcs,
        num_arcs,
        _joined(targets),
        np.concatenate([[0], np.cumsum(_joined(lengths))]),
        _joined(paths),
        root_path,
    )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _runs(graph: Graph, edges: Ints, *, compact: bool) -> tuple[Ints, Ints]:
    """The edges of arcs that begin with some edges, end to end, and how many each arc has."""
    # All arcs grow by one edge at a time. An arc that runs in a cycle ends where it reaches a
    # node for the second time.
    if not compact:
        return edges, np.ones(len(edges), np.int64)
    owners, steps = [np.arange(len(edges))], [edges]
    anchors, since, limit = graph.parent[edges], 0, 1
    rounds = False
    while len(owners[-1]):
        last, owner = steps[-1], owners[-1]
        ends = graph.child[last]
        circling = ends == anchors[owner]
        rounds |= bool(circling.any())
        goes_on = (graph.links.degree[ends] == 1) & ~graph.done[last] & ~circling
        if (since := since + 1) == limit:  # Brent: later anchors are ever further apart
            anchors[owner], since, limit = ends, 0, 2 * limit
        owners.append(owner[goes_on])
        steps.append(graph.links.first[ends[goes_on]])
    owner, path = np.concatenate(owners), np.concatenate(steps)
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(edges))
    return _without_rounds(graph, path[order], sizes) if rounds else (path[order], sizes)


def _without_rounds(graph: Graph, path: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Arcs cut where they reach a node for the second time."""
    arc = np.repeat(np.arange(len(sizes)), sizes)
    begin = np.cumsum(sizes) - sizes
    visits = np.stack([arc, graph.child[path]], 1)
    starts = np.stack([np.arange(len(sizes)), graph.parent[path[begin]]], 1)
    both = np.concatenate([starts, visits])
    first = np.unique(both, axis=0, return_index=True)[1]
    again = np.ones(len(both), np.bool_)
    again[first] = False
    again = again[len(starts) :]
    # kept are the edges up to the first that comes again, itself included
    before: Ints = np.cumsum(again) - again
    kept: Flags = before == before[begin][arc]
    return path[kept], np.bincount(arc[kept], minlength=len(sizes))
