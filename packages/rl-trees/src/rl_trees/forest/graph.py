"""Nodes and edges of a forest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_replay import LazyTensorStorage
from rl_tensordict.types import Flags, Ints, Words
from rl_trees.forest.links import EdgeLinks, grown
from rl_trees.map.key_layout import KeyLayout
from rl_trees.map.row_writes import write_rows
from rl_trees.table.key_table import KeyTable

ENDS = 2
"""Words of an edge that name its nodes: parent and child; the action follows."""


class Tally(NamedTuple):
    """What is added up or noted for each step."""

    rewards: NDArray[np.float64]  # [N], the sums over all reward entries
    dones: NDArray[np.bool_]  # [N], whether any done entry is set


class Graph:
    """A node for each observation, an edge for each observation, action and result."""

    # All columns are flat and numbered by node or by edge. Observations and actions are stored
    # once, as the keys of two tables; what else a step produced is a row of a storage.
    # nodes: The table of observations.
    # edges: The table of parent, child and action.
    # links: The edges that leave each node.
    # steps: Rewards, done flags and other results, a row for each edge.
    # count: int64 `[edges]`, how often a step was taken.
    # reward: float64 `[edges]`, the sum of its rewards.
    # done: bool `[edges]`, whether the step ended an episode.

    def __init__(self, observations: KeyLayout, actions: KeyLayout, max_size: int) -> None:
        self.observations, self.actions = observations, actions
        self.nodes = KeyTable(observations.width)
        self.edges = KeyTable(ENDS + actions.width, max_size)
        self.links = EdgeLinks()
        self.steps = LazyTensorStorage(max_size)
        self.count = np.empty(0, np.int64)
        self.reward = np.empty(0, np.float64)
        self.done = np.empty(0, np.bool_)

    @property
    def parent(self) -> Ints:
        """int64 `[edges]`, the node that an edge leaves."""
        return self.edges.words[:, 0].view(np.int64)

    @property
    def child(self) -> Ints:
        """int64 `[edges]`, the node that an edge leads to."""
        return self.edges.words[:, 1].view(np.int64)

    def extend(self, ends: Words, actions: Words, results: TensorDictBase, tally: Tally) -> Ints:
        """Adds steps `[N]`."""
        # ends: Observations before all steps, then after all steps, uint64 `[2N, ...]`.
        # actions: uint64 `[N, ...]`.
        # returns: The nodes before the steps, int64 `[N]`.
        before, known_nodes = len(self.edges), len(self.nodes)
        counted: tuple[Ints, Ints, NDArray[np.float64], Flags] | None = None
        try:
            nodes, _ = self.nodes.insert(ends, self.nodes.hash(ends))
            parents, children = nodes[: len(actions)], nodes[len(actions) :]
            words = np.column_stack([parents.view(np.uint64), children.view(np.uint64), actions])
            rows, added = self.edges.insert(words, self.edges.hash(words))
            if not results.is_empty():
                write_rows(self.steps, self.edges, rows, added, results)
            self.links.append(before, parents[added], len(self.nodes))
            self._make_room()
            counted = rows, self.count[rows], self.reward[rows], self.done[rows]
            np.add.at(self.count, rows, 1)
            np.add.at(self.reward, rows, tally.rewards)
            self.done[rows] = tally.dones
        except BaseException:
            if counted is not None:
                rows, self.count[rows], self.reward[rows], self.done[rows] = counted
            self._forget(before, known_nodes)
            raise
        return parents

    def _make_room(self) -> None:
        """Makes the columns as long as there are edges."""
        size = len(self.edges)
        self.count = grown(self.count, size, 0)
        self.reward = grown(self.reward, size, 0.0)
        self.done = grown(self.done, size, False)

    def _forget(self, edges: int, nodes: int) -> None:
        """Drops the edges and nodes that a failed call has added."""
        self.edges.truncate(edges)
        self.nodes.truncate(nodes)
        self.links = EdgeLinks()
        self.links.append(0, np.ascontiguousarray(self.parent), nodes)

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Takes the columns that `columns` gave; the steps are loaded by the caller."""
        self.nodes.insert(arrays["nodes"], self.nodes.hash(arrays["nodes"]))
        self.edges.insert(arrays["edges"], self.edges.hash(arrays["edges"]))
        self.links = EdgeLinks()
        self.links.append(0, np.ascontiguousarray(self.parent), len(self.nodes))
        self.count, self.reward, self.done = (arrays[n] for n in ("count", "reward", "done"))

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns from which the graph is restored."""
        size = len(self.edges)
        counted = {"count": self.count, "reward": self.reward, "done": self.done}
        columns = {name: column[:size] for name, column in counted.items()}
        return {"nodes": self.nodes.words, "edges": self.edges.words, **columns}

    def observation_of(self, nodes: Ints) -> TensorDict:
        """The observations of nodes `[N]`."""
        return self.observations.decode(self.nodes.words[nodes])

    def action_of(self, edges: Ints) -> TensorDict:
        """The actions of edges `[N]`."""
        return self.actions.decode(self.edges.words[edges, ENDS:])

    def rollout(self, edges: Ints) -> TensorDict:
        """The steps of edges `[N]`: observation, action, and what followed under `"next"`."""
        steps = self.observation_of(self.parent[edges])
        steps.update(self.action_of(edges))
        after = self.observation_of(self.child[edges])
        if len(self.steps):
            after.update(self.steps.read(torch.from_numpy(edges)))
        steps.set("next", after)
        return steps
