"""A forest: the steps of many rollouts as one graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_collection, check_type, check_whole, key_list, shown
from rl_tensordict.types import Ints
from rl_trees.forest.graph import ENDS, Graph, Tally
from rl_trees.forest.tree import Path, Tree
from rl_trees.forest.vertices import vertices_from
from rl_trees.map.dump import load_rows, read_dump, write_dump
from rl_trees.map.key_layout import KeyLayout, columns_of
from rl_trees.map.query_module import first_of

KIND = "rl_trees.MCTSForest"
KeyArgument = Sequence[NestedKey] | NestedKey | None
DEFAULTS: dict[str, list[NestedKey]] = {
    "done_keys": ["done", "terminated", "truncated"],
    "reward_keys": ["reward"],
    "observation_keys": ["observation"],
    "action_keys": ["action"],
}


class MCTSForest:
    """Stores rollouts as a graph, and gives the trees that begin at any observation.

    A node is an observation, stored once. An edge is a step: an observation, an action, and the
    next observation. Steps that come again are counted, and what else they produced is replaced.
    Observations that are reached in several ways are one node.

    Args:
        max_size: The most different steps; a million unless given.
        done_keys: Entries of `"next"` that end an episode; `done`, `terminated` and `truncated`
            unless given, if present.
        reward_keys: Entries of `"next"` that are added up; `reward` unless given, if present.
        observation_keys: The entries that make an observation; `observation` unless given.
        action_keys: The entries that make an action; `action` unless given.
        excluded_keys: Entries of `"next"` that are not stored.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> forest = MCTSForest()
        >>> steps = trajectories([4])
        >>> _ = forest.extend(steps)
        >>> tree = forest.get_tree(steps[0], compact=False)
        >>> len(forest), tree.max_length(), bool(tree.get_vertex_by_id(4).is_terminal)
        (4, 4, True)
    """

    def __init__(
        self,
        *,
        max_size: int | None = None,
        done_keys: KeyArgument = None,
        reward_keys: KeyArgument = None,
        observation_keys: KeyArgument = None,
        action_keys: KeyArgument = None,
        excluded_keys: KeyArgument = None,
    ) -> None:
        self.max_size = 1_000_000 if max_size is None else max_size
        check_whole("max_size", self.max_size, 1)
        self._named: dict[str, list[NestedKey] | None] = {
            "done_keys": _listed("done_keys", done_keys),
            "reward_keys": _listed("reward_keys", reward_keys),
            "observation_keys": _listed("observation_keys", observation_keys),
            "action_keys": _listed("action_keys", action_keys),
        }
        self.excluded_keys = _listed("excluded_keys", excluded_keys) or []
        self._graph: Graph | None = None

    done_keys = property(lambda self: self._keys("done_keys"), doc="Entries that end an episode.")
    reward_keys = property(lambda self: self._keys("reward_keys"), doc="Entries to add up.")
    observation_keys = property(
        lambda self: self._keys("observation_keys"), doc="The entries of an observation."
    )
    action_keys = property(lambda self: self._keys("action_keys"), doc="The entries of an action.")

    def get_keys_from_env(self, env: Any) -> None:
        """Takes the names of entries from an environment, except those that were given.

        Args:
            env: Has `reward_keys`, `done_keys`, `action_keys`, and an `observation_spec`.

        Raises:
            RuntimeError: Steps were stored under other names.
        """
        names = {kind: list(getattr(env, kind)) for kind in DEFAULTS if hasattr(env, kind)}
        if "observation_keys" not in names:
            if not hasattr(env, "observation_spec"):
                raise TypeError(f"env: expected an environment with specs, got {shown(env)}.")
            names["observation_keys"] = list(env.observation_spec.keys(True, True))
        missing = {kind: keys for kind, keys in names.items() if self._named[kind] is None}
        changed = {kind for kind, keys in missing.items() if keys != DEFAULTS[kind]}
        if self._graph is not None and changed & {"observation_keys", "action_keys"}:
            raise RuntimeError(
                f"{len(self)} steps are stored by {self.observation_keys} and {self.action_keys}, "
                f"and the environment has {names['observation_keys']} and {names['action_keys']}: "
                "take the names before the first steps."
            )
        self._named.update(missing)

    def __len__(self) -> int:
        return 0 if self._graph is None else len(self._graph.edges)

    @property
    def num_nodes(self) -> int:
        """How many different observations there are."""
        return 0 if self._graph is None else len(self._graph.nodes)

    def extend(self, rollout: TensorDictBase, *, return_node: bool = False) -> Tree | None:
        """Adds steps.

        Args:
            rollout: Steps `[*B]`, of any number of trajectories.
            return_node: Return the tree that begins at the first step.

        Returns:
            A tree, if asked for.

        Raises:
            KeyError: An entry that is named is missing; the message lists the ones that exist.
            ValueError: Observations or actions of another dtype or shape than the first ones.
            RuntimeError: More steps than `max_size`; nothing is written.
        """
        check_collection("rollout", rollout)
        if not is_tensor_collection(rollout.get("next", None)):
            raise KeyError(f"a rollout has a group 'next', this one has {_names(rollout)}.")
        after, count = rollout["next"], rollout.batch_size.numel()
        if not count:
            return None
        before_columns = columns_of(rollout, self.observation_keys)
        after_columns = columns_of(after, self.observation_keys)
        action_columns = columns_of(rollout, self.action_keys)
        graph = self._graph
        if graph is None:
            observations = KeyLayout.of(self.observation_keys, before_columns)
            action_layout = KeyLayout.of(self.action_keys, action_columns)
            graph = Graph(observations, action_layout, self.max_size)
        columns = [torch.cat(pair) for pair in zip(before_columns, after_columns, strict=True)]
        ends, actions = graph.observations.encode(columns), graph.actions.encode(action_columns)
        parents = graph.extend(ends, actions, self._results(after), self._tally(after))
        self._graph = graph
        return self._tree(int(parents[0])) if return_node else None

    def add(self, step: TensorDictBase, *, return_node: bool = False) -> Tree | None:
        """Adds one step.

        Args:
            step: A step `[]`.
            return_node: Return the tree that begins at it.

        Returns:
            A tree, if asked for.
        """
        check_collection("step", step)
        return self.extend(step if step.ndim else step.unsqueeze(0), return_node=return_node)

    def get_child(self, root: TensorDictBase) -> TensorDict:
        """What followed observations and actions.

        Args:
            root: Observations with actions `[*B]`.

        Returns:
            The results under `"next"`, `[*B]`: of several ones the one that was seen most often.

        Raises:
            KeyError: A step that is not there.
        """
        check_collection("root", root)
        graph = self._require()
        nodes = self._nodes_of(root)
        words = graph.actions.encode(columns_of(root, self.action_keys))
        edges, counts = graph.links.of(nodes)
        owners = np.repeat(np.arange(len(nodes)), counts)
        same = (graph.edges.words[edges, ENDS:] == words[owners]).all(1)
        edges, owners = edges[same], owners[same]
        order = np.lexsort((-edges, graph.count[edges], owners))
        chosen = np.full(len(nodes), -1, np.int64)
        chosen[owners[order]] = edges[order]  # of several the last one, the most frequent
        _require_stored(chosen, root.batch_size, "actions were never taken at these observations")
        steps = graph.rollout(chosen).select("next")
        return steps.reshape(root.batch_size) if root.ndim else steps[0]

    def get_tree(
        self, root: TensorDictBase, *, max_depth: int | None = None, compact: bool = True
    ) -> Tree:
        """The tree that begins at an observation.

        Args:
            root: A step or an observation `[]`; of several `[*B]` the first one.
            max_depth: Levels below the root; all unless given.
            compact: Merge steps between which nothing branches.

        Returns:
            A view of the forest as it is now; get it again after `extend`.

        Raises:
            KeyError: No step begins or ends with this observation.
            ValueError: A negative depth.
        """
        check_collection("root", root)
        if max_depth is not None:
            check_whole("max_depth", max_depth, 0)
        first = root.reshape(-1)[:1] if root.ndim else root
        return self._tree(int(self._nodes_of(first)[0]), max_depth=max_depth, compact=compact)

    @classmethod
    def valid_paths(cls, tree: Tree) -> Iterator[Path]:
        """All paths of a tree, as `Tree.valid_paths`."""
        check_type("tree", tree, Tree, "a Tree")
        return tree.valid_paths()

    def to_string(
        self, td_root: TensorDictBase, node_format_fn: Callable[[Tree], Any] | None = None
    ) -> str:
        """The tree that begins at an observation, as text.

        Args:
            td_root: The observation.
            node_format_fn: What to print of a vertex; its observation unless given.
        """
        return self.get_tree(td_root).to_string(node_format_fn)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Writes all steps to a folder: JSON and arrays, no pickle.

        Args:
            path: The folder; a dump that is there is replaced when the new one is complete.
        """
        graph = self._require()
        document = {
            "observations": graph.observations.to_json(),
            "actions": graph.actions.to_json(),
        }
        write_dump(path, KIND, document, graph.columns(), graph.steps)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replaces all steps with those of a dump.

        Args:
            path: A folder that `dumps` wrote.

        Raises:
            FileNotFoundError: There is no dump.
            ValueError: Other entries than those of this forest, more steps than fit, or a dump that
                was altered.
        """
        dump = read_dump(path, KIND)
        observations = KeyLayout.from_json(dump.document.get("observations"))
        actions = KeyLayout.from_json(dump.document.get("actions"))
        if [observations.names, actions.names] != [self.observation_keys, self.action_keys]:
            raise ValueError(
                f"{path} holds steps by {observations.names} and {actions.names}, and this forest "
                f"is by {self.observation_keys} and {self.action_keys}."
            )
        graph = Graph(observations, actions, self.max_size)
        _require_intact(path, graph, dump.arrays)
        graph.restore(dump.arrays)
        load_rows(graph.steps, dump.rows)
        if 0 < len(graph.steps) < len(graph.edges):  # more are left of an interrupted write
            raise ValueError(f"{path} was altered: {len(graph.steps)} rows for another number.")
        self._graph = graph

    def _keys(self, kind: str) -> list[NestedKey]:
        named = self._named[kind]
        return DEFAULTS[kind] if named is None else named

    def _require(self) -> Graph:
        if self._graph is None:
            raise KeyError("the forest holds no steps: extend it first.")
        return self._graph

    def _nodes_of(self, root: TensorDictBase) -> Any:
        """The nodes of observations `[*B]`, in one dimension."""
        graph = self._require()
        words = graph.observations.encode(columns_of(root, self.observation_keys))
        nodes = graph.nodes.find(words, graph.nodes.hash(words))
        _require_stored(nodes, root.batch_size, "observations are in no stored step")
        return nodes

    def _tree(self, node: int, *, max_depth: int | None = None, compact: bool = True) -> Tree:
        return Tree(vertices_from(self._require(), node, max_depth=max_depth, compact=compact))

    def _results(self, after: TensorDictBase) -> TensorDictBase:
        """What is stored of `"next"`, `[N]`: all but observations and excluded entries."""
        results = after.exclude(*self.observation_keys, *self.excluded_keys)
        return results.reshape(-1) if results.ndim != 1 else results

    def _tally(self, after: TensorDictBase) -> Tally:
        """Sums of rewards and done flags; entries that are named by the caller must be there."""
        count = after.batch_size.numel()
        rewards, dones = np.zeros(count), np.zeros(count, np.bool_)
        for kind, total in (("reward_keys", rewards), ("done_keys", dones)):
            for key in self._keys(kind):
                value = after.get(key, None)
                if value is None and self._named[kind] is not None:
                    raise KeyError(f"{kind} names {key!r}, and 'next' has {_names(after)}.")
                if value is not None:
                    rows = value.detach().cpu().reshape(count, -1)
                    if kind == "reward_keys":
                        total += rows.double().sum(1).numpy()
                    else:
                        total |= rows.any(1).numpy()
        return Tally(rewards, dones)


def _listed(name: str, keys: KeyArgument) -> list[NestedKey] | None:
    """Keys as a list; a string or a tuple of strings is one key."""
    if keys is None:
        return None
    return key_list(name, [keys] if isinstance(keys, (str, tuple)) else keys)


def _names(tensordict: TensorDictBase) -> str:
    return ", ".join(sorted(map(str, tensordict.keys(True, True)))) or "nothing"


def _require_intact(path: Any, graph: Graph, arrays: dict[str, Any]) -> None:
    """Raises unless columns fit together: their dtypes, their lengths, the nodes they name."""
    kinds = {"nodes": "uint64", "edges": "uint64", "count": "int64", "reward": "float64"}
    kinds["done"] = "bool"
    if {name: str(array.dtype) for name, array in arrays.items()} != kinds:
        raise ValueError(f"{path} was altered: its columns are not those of a forest.")
    nodes, edges = arrays["nodes"], arrays["edges"]
    sizes = {len(arrays[name]) for name in kinds if name != "nodes"}
    widths = (nodes.shape[1:], edges.shape[1:]) == ((graph.nodes.width,), (graph.edges.width,))
    if len(sizes) != 1 or not widths or (edges[:, :ENDS] >= max(len(nodes), 1)).any():
        raise ValueError(f"{path} was altered: its columns do not fit together.")
    if len(edges) > (graph.edges.max_size or 0):
        raise ValueError(f"{path} holds {len(edges)} steps, more than max_size.")
    for name, width in (("nodes", graph.nodes.width), ("edges", graph.edges.width)):
        if len(np.unique(arrays[name], axis=0)) != len(arrays[name]) and width:
            raise ValueError(f"{path} was altered: it has some {name} twice.")


def _require_stored(rows: Ints, batch: torch.Size, what: str) -> None:
    """Raises where there is no row, -1."""
    if (unknown := rows < 0).any():
        raise KeyError(
            f"{int(unknown.sum())} of {len(rows)} {what}, the first at index "
            f"{first_of(unknown, batch)}: they are compared bit for bit."
        )
