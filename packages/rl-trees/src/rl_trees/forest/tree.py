"""A tree of a forest: a view of its nodes and edges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_calls, check_choice, check_integer, check_type, shown
from rl_tensordict.types import Ints
from rl_trees.forest.drawing import Drawing, drawn_on_axes, to_svg
from rl_trees.forest.vertices import Vertices

Path = tuple[int, ...]


class Tree:
    """A vertex of a forest with what follows it. It is a view: nothing is copied until it is read.

    A vertex is an observation where several actions were taken, or where steps end. A path is a
    tuple of numbers of children. Where different actions lead to one observation, their subtrees
    are the same ones; a path ends where it comes to a vertex for the second time. Nothing recurses.

    Made by `MCTSForest.get_tree`.

    Args:
        vertices: The part of the forest below a root.
        vertex: The number of this vertex; the root is 0.
        arc: The arc by which it was reached; -1 for the root.
        parent: The tree whose child this is.

    Attributes:
        node_id: The number of this vertex, level by level from the root on.
        parent: As given; None for the root.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from rl_trees import MCTSForest
        >>> forest = MCTSForest()
        >>> for actions, seen in [([1, 4], [0, 10, 20]), ([1, 5], [0, 10, 30])]:
        ...     seen = torch.tensor(seen)
        ...     steps = {"observation": seen[:-1], "action": torch.tensor(actions)}
        ...     _ = forest.extend(TensorDict(steps | {"next": {"observation": seen[1:]}}, [2]))
        >>> tree = forest.get_tree(TensorDict({"observation": torch.tensor(0)}))
        >>> tree.node_observation, tree.num_children, list(tree.valid_paths())
        (tensor(10), 2, [(0,), (1,)])
        >>> tree.rollout_from_path((1,))["next", "observation"]
        tensor([10, 30])
    """

    def __init__(
        self, vertices: Vertices, vertex: int = 0, arc: int = -1, parent: Tree | None = None
    ) -> None:
        check_type("vertices", vertices, Vertices, "the vertices of a forest")
        self.vertices_table = vertices
        self.node_id = vertex
        self.arc = arc
        self.parent = parent

    @property
    def num_children(self) -> int:
        """How many subtrees there are."""
        return int(self.vertices_table.num_arcs[self.node_id])

    @property
    def subtree(self) -> tuple[Tree, ...] | None:
        """The subtrees, a child for each action and result; None without children."""
        return tuple(self.child(i) for i in range(self.num_children)) or None

    def child(self, number: int) -> Tree:
        """One subtree.

        Args:
            number: Of the child, from 0.

        Raises:
            IndexError: There is no such child.
        """
        check_integer("number", number)
        if not 0 <= number < self.num_children:
            raise IndexError(
                f"vertex {self.node_id} has {self.num_children} children, there is no number "
                f"{number}."
            )
        arc = int(self.vertices_table.first_arc[self.node_id]) + number
        return Tree(self.vertices_table, int(self.vertices_table.target[arc]), arc, self)

    @property
    def node(self) -> int:
        """The number of the observation in the forest."""
        return int(self.vertices_table.node[self.node_id])

    @property
    def hash(self) -> int:
        """A hash of the observation and of whether it ended an episode, as an int64."""
        table = self.vertices_table
        word = table.graph.nodes.hashes[self.node] ^ np.uint64(table.terminal[self.node_id])
        return int(word.view(np.int64))

    @property
    def index(self) -> torch.Tensor | None:
        """The edges that branch out from here, numbers of rows; None without children."""
        return torch.from_numpy(self._branches()) if self.num_children else None

    @property
    def count(self) -> torch.Tensor:
        """How often the last step to this vertex was taken; of a root how often it was left."""
        graph, path = self.vertices_table.graph, self._path
        edges = path[-1:] if len(path) else graph.links.of(np.array([self.node]))[0]
        return torch.tensor(int(graph.count[edges].sum()), device="cpu")

    visits = count

    @property
    def wins(self) -> torch.Tensor:
        """The sum of the rewards of the last step, float64, over all times that it was taken."""
        total = float(self.vertices_table.graph.reward[self._path[-1:]].sum())
        return torch.tensor(total, dtype=torch.float64, device="cpu")

    @property
    def rollout(self) -> TensorDict | None:
        """The steps `[T]` from the parent vertex to this one; None if there are none."""
        path = self._path
        return self.vertices_table.graph.rollout(path) if len(path) else None

    @property
    def node_data(self) -> TensorDict:
        """The observation at this vertex, with all its entries."""
        return self.vertices_table.graph.observation_of(np.array([self.node]))[0]

    @property
    def node_observation(self) -> Any:
        """The observation at this vertex: a tensor, or a tensordict of several entries."""
        return _single(self.node_data, self.vertices_table.graph.observations.names)

    @property
    def node_observations(self) -> TensorDict:
        """The observation at this vertex as a tensordict."""
        return self.node_data

    @property
    def branching_action(self) -> Any:
        """The first action of the steps to this vertex; None for a root without steps."""
        path = self._path
        return self._actions(path[:1], first=True) if len(path) else None

    @property
    def prev_action(self) -> Any:
        """The last action of the steps to this vertex; None for a root without steps."""
        path = self._path
        return self._actions(path[-1:], first=True) if len(path) else None

    @property
    def selected_actions(self) -> Any:
        """The actions `[num_children]` that branch out from here; None without children."""
        return self._actions(self._branches()) if self.num_children else None

    @property
    def is_terminal(self) -> bool:
        """Whether the last step to this vertex ended an episode."""
        return bool(self.vertices_table.terminal[self.node_id])

    def fully_expanded(self, env: Any) -> bool:
        """Whether as many different actions branch out as an environment has.

        Args:
            env: Has an `action_spec` with a `cardinality()`.
        """
        spec: Any = getattr(env, "action_spec", None)
        if not callable(getattr(spec, "cardinality", None)):
            raise TypeError(f"env: expected an environment with an action_spec, got {shown(env)}.")
        graph = self.vertices_table.graph
        actions = graph.edges.words[self._branches(), 2:]
        return bool(len(np.unique(actions, axis=0)) == spec.cardinality())

    def vertices(self, *, key_type: str = "hash") -> dict[Any, Tree]:
        """The vertices of this tree, the nearest first.

        Args:
            key_type: What names them: `"id"`, `"hash"`, or `"path"`, which has a vertex as often
                as there are paths to it.

        Raises:
            ValueError: Another key type.
        """
        if key_type == "path":
            return dict(self._paths())
        if key_type not in ("id", "hash"):
            raise ValueError(f"key_type must be 'hash', 'id' or 'path', got {key_type!r}.")
        trees = self._distinct()
        return {tree.node_id if key_type == "id" else tree.hash: tree for tree in trees}

    def num_vertices(self, *, count_repeat: bool = False) -> int:
        """How many vertices there are.

        Args:
            count_repeat: Count a vertex once for each path to it.
        """
        walk = self._paths() if count_repeat else self._distinct()
        return sum(1 for _ in walk)

    def edges(self) -> list[tuple[int, int]]:
        """Pairs of parent and child, by `node_id`, level by level."""
        table = self.vertices_table
        return [
            (tree.node_id, int(table.target[arc]))
            for tree in self._distinct()
            for arc in range(
                int(table.first_arc[tree.node_id]),
                int(table.first_arc[tree.node_id] + table.num_arcs[tree.node_id]),
            )
        ]

    def valid_paths(self) -> Iterator[Path]:
        """All paths from this vertex to the end of steps, the shortest first."""
        for path, tree in self._paths():
            if not tree.num_children or tree.node_id in tree._ancestors(len(path)):
                yield path

    def max_length(self) -> int:
        """The number of arcs of the longest path."""
        return max(map(len, self.valid_paths()))

    def rollout_from_path(self, path: Sequence[int]) -> TensorDict | None:
        """The steps along a path, those to this vertex first; None if there are none.

        Args:
            path: Numbers of children.

        Raises:
            IndexError: There is no such child.
            TypeError: A path that is no sequence of whole numbers.
        """
        check_type("path", path, Sequence, "a sequence of numbers of children")
        tree, parts = self, [self._path]
        for number in path:
            tree = tree.child(number)
            parts.append(tree._path)
        edges = np.concatenate(parts)
        return self.vertices_table.graph.rollout(edges) if len(edges) else None

    def get_vertex_by_id(self, id: int) -> Tree:
        """The vertex with a `node_id`.

        Raises:
            ValueError: There is none in this tree.
        """
        check_integer("id", id)
        return self._first(lambda tree: tree.node_id == id, f"node_id {id}")

    def get_vertex_by_hash(self, hash: int) -> Tree:
        """The nearest vertex with a hash.

        Raises:
            ValueError: There is none in this tree.
        """
        check_integer("hash", hash)
        return self._first(lambda tree: tree.hash == hash, f"hash {hash}")

    def __contains__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return False
        return any(
            tree.is_terminal == other.is_terminal and _same(tree.node_data, other.node_data)
            for tree in self._distinct()
            if tree.hash == other.hash
        )

    def to_string(self, node_format_fn: Callable[[Tree], Any] | None = None) -> str:
        """The tree as text, a line for each vertex with steps before it.

        Args:
            node_format_fn: What to print of a vertex; its observation unless given.

        Raises:
            TypeError: `node_format_fn` is no function.
        """
        check_calls(node_format_fn=node_format_fn)
        show = node_format_fn or (lambda tree: tree.node_data.to_dict())
        lines: list[str] = []
        left: deque[tuple[Path, Tree]] = deque([((), self)])
        while left:
            path, tree = left.pop()
            if len(tree._path):
                lines.append(f"{' ' * (len(path) - 1)}{path} {show(tree)}")
            if tree.node_id not in tree._ancestors(len(path)):
                children = range(tree.num_children)
                left.extend(((*path, i), tree.child(i)) for i in reversed(children))
        return "\n".join(lines)

    def to_svg(self, make_labels: Callable[[Tree], Any] | None = None) -> str:
        """The tree as a picture in SVG; a step to a vertex that has its place already is dashed.

        Args:
            make_labels: What to write at a vertex; how often the last step to it was taken unless
                given.

        Raises:
            TypeError: `make_labels` is no function.
        """
        return to_svg(self._drawing(make_labels))

    def plot(
        self,
        backend: str = "matplotlib",
        figure: str = "tree",
        info: Sequence[str] | None = None,
        make_labels: Callable[[Tree], Any] | None = None,
    ) -> Any:
        """Draws the tree with matplotlib.

        Args:
            backend: `"matplotlib"`.
            figure: `"tree"`.
            info: Names of properties to write at a vertex, such as `["count", "wins"]`.
            make_labels: In place of `info`.

        Returns:
            The axes.

        Raises:
            NotImplementedError: Another backend or figure.
            ImportError: matplotlib is missing.
            TypeError: `info` is no sequence of names, or `make_labels` no function.
            ValueError: a tree has no such property; the message lists the ones that exist.
        """
        if backend != "matplotlib" or figure != "tree":
            raise NotImplementedError(
                f"there is backend='matplotlib' with figure='tree', got {backend!r} and {figure!r}."
            )
        names = _properties(info)
        if make_labels is None and info is not None:
            make_labels = lambda tree: "\n".join(f"{n}={_shown(tree, n)}" for n in names)  # noqa: E731
        return drawn_on_axes(self._drawing(make_labels))

    def __repr__(self) -> str:
        return (
            f"Tree(node_id={self.node_id}, num_children={self.num_children}, "
            f"count={int(self.count)}, steps={len(self._path)})"
        )

    @cached_property
    def _path(self) -> Ints:
        """The edges from the parent vertex to this one."""
        return self.vertices_table.edges_of(self.arc)

    def _branches(self) -> Ints:
        """The first edge of each child."""
        table = self.vertices_table
        first = int(table.first_arc[self.node_id])
        return table.path[table.begin[first : first + self.num_children]]

    def _actions(self, edges: Ints, *, first: bool = False) -> Any:
        """The actions of edges; a tensor where an action has one entry."""
        graph = self.vertices_table.graph
        actions = graph.action_of(edges)
        return _single(actions[0] if first else actions, graph.actions.names)

    def _ancestors(self, levels: int) -> set[int]:
        """The vertices on the path to this one, up to so many levels above it."""
        above, tree = set(), self
        for _ in range(levels):
            assert tree.parent is not None  # there are as many as the path is long
            tree = tree.parent
            above.add(tree.node_id)
        return above

    def _paths(self) -> Iterator[tuple[Path, Tree]]:
        """Every path from here with the vertex at its end, the shortest first."""
        left: deque[tuple[Path, Tree]] = deque([((), self)])
        while left:
            path, tree = left.popleft()
            yield path, tree
            if tree.num_children and tree.node_id not in tree._ancestors(len(path)):
                left.extend(((*path, i), tree.child(i)) for i in range(tree.num_children))

    def _distinct(self) -> Iterator[Tree]:
        """Every vertex from here once, the nearest first."""
        left, known = deque([self]), {self.node_id}
        while left:
            tree = left.popleft()
            yield tree
            for child in tree.subtree or ():
                if child.node_id not in known:
                    known.add(child.node_id)
                    left.append(child)

    def _first(self, fits: Callable[[Tree], bool], name: str) -> Tree:
        for tree in self._distinct():
            if fits(tree):
                return tree
        raise ValueError(f"this tree has no vertex with {name}.")

    def _drawing(self, make_labels: Callable[[Tree], Any] | None) -> Drawing:
        """Places and labels of all vertices."""
        check_calls(make_labels=make_labels)
        label = make_labels or (lambda tree: int(tree.count))
        trees = list(self._distinct())
        return Drawing.of(self.edges(), {tree.node_id: str(label(tree)) for tree in trees})


def _single(entries: TensorDict, names: Sequence[NestedKey]) -> Any:
    """The only entry, or all of them."""
    return entries[names[0]] if len(names) == 1 else entries


def _same(one: TensorDict, other: TensorDict) -> bool:
    """Whether two observations have the same entries and bytes."""
    names = set(one.keys(True, True))
    if names != set(other.keys(True, True)):
        return False
    pairs = [(one[name], other[name]) for name in names]
    return all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))
        for x, y in pairs
    )


def _properties(info: Sequence[str] | None) -> list[str]:
    """Names of properties of a tree; a string is no list of them."""
    if info is None:
        return []
    if isinstance(info, str) or not isinstance(info, Sequence):
        raise TypeError(f"info: expected a list of names of properties, got {shown(info)}.")
    public = {name for name, kind in vars(Tree).items() if isinstance(kind, property)}
    for name in info:
        check_choice("info", name, sorted({"node_id", *public}))
    return list(info)


def _shown(tree: Tree, name: str) -> Any:
    """A property as a label shows it."""
    value = getattr(tree, name)
    return value.tolist() if isinstance(value, torch.Tensor) else value
