"""Searches in many trees at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout.internals import load_compiled
from rl_tensordict.arguments import check_number, check_type, check_whole, shown
from rl_tensordict.types import Floats, Ints
from rl_trees.search import numpy_search
from rl_trees.search.columns import GUMBEL_RULE, SearchColumns, allocate
from rl_trees.search.model import SearchModel, node_states, step_of
from rl_trees.search.results import TensorLike, array_of, results_of
from rl_trees.search.rules import PUCT, SelectionRule

_NUMBA = "rl_trees.search.numba_search"


class SearchLeaves(NamedTuple):
    """Edges at which trees are to grow: a node of each tree and an action there."""

    node: torch.Tensor  # int64 [B] or [B, k]
    action: torch.Tensor  # int64, of the same shape


class MCTSTrees:
    """Monte-Carlo tree search in B independent trees, whose states the caller keeps.

    A simulation is three calls: `select` walks down each tree to the edge to expand, the
    caller steps an environment or a model in all trees at once, `expand` adds the results as
    nodes, and `backup` adds their values to all edges above. Everything is in flat arrays of
    B trees, N nodes and A actions, allocated once; tensors share their memory.

    A return is reward + discount x the return of the child. In games of two players who alternate,
    with values for the player to move, the discount is -1.

    Args:
        num_trees: B.
        num_nodes: N, the root and one for each simulation.
        num_actions: A.
        rule: Which action is tried next: `PUCT`, `UCB1`, `EXP3`, or `GumbelHalving`.
        virtual_loss: What a selection that is not backed up counts, as a visit, against its edges,
            so that several selections in one tree spread.

    Raises:
        ValueError: A number that is not positive.

    Example:
        >>> import torch
        >>> trees = MCTSTrees(num_trees=2, num_nodes=9, num_actions=3)
        >>> trees.reset(torch.zeros(2, 3))
        >>> for _ in range(8):
        ...     leaves = trees.select()
        ...     reward = (leaves.action == 2).float()
        ...     _ = trees.expand(leaves, reward, torch.zeros(2, 3), torch.zeros(2))
        ...     trees.backup(leaves)
        >>> trees.best_actions()
        tensor([2, 2])
    """

    def __init__(
        self,
        num_trees: int,
        num_nodes: int,
        num_actions: int,
        rule: SelectionRule | None = None,
        *,
        virtual_loss: float = 1.0,
    ) -> None:
        for name, number in (("trees", num_trees), ("nodes", num_nodes), ("actions", num_actions)):
            check_whole(f"num_{name}", number, 1)
        self.num_trees, self.num_nodes, self.num_actions = num_trees, num_nodes, num_actions
        self.rule = PUCT() if rule is None else rule
        check_type("rule", self.rule, SelectionRule, "a rule, as PUCT()")
        check_number("virtual_loss", virtual_loss)
        self._rule = self.rule.rule(virtual_loss)
        plan = self.rule.plan(num_actions)
        self.columns: SearchColumns = allocate(num_trees, num_nodes, num_actions, plan)
        self._last: tuple[SearchLeaves, Ints, Ints] | None = None
        self._expanded = False  # whether the last leaves have children
        self._largest = 0  # at least as many nodes as the largest tree has

    def reset(
        self,
        logits: TensorLike,
        value: TensorLike | None = None,
        legal: TensorLike | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Begins new searches with nothing but roots.

        Args:
            logits: `[B, A]`, logarithms of the priors up to a constant.
            value: `[B]`, estimates of the roots' values; 0 unless given.
            legal: bool `[B, A]`; all actions unless given.
            generator: Draws the noise of `GumbelHalving` and the seeds of `EXP3`.

        Raises:
            ValueError: Another shape, numbers that are not finite, or a root without legal actions.
        """
        count, c = self.num_trees, self.columns
        shape = (count, self.num_actions)
        none = np.zeros(count)
        given = (none, logits, none if value is None else value, 1.0, None, legal)
        numbers, _, allowed = (x[:, 0] for x in results_of((count,), self.num_actions, *given))
        roots = np.arange(count), np.zeros(count, np.int64)
        self._loops.fill(c, *roots, numbers[:, :-3], allowed, numbers[:, -1])
        c.size[:], c.done[:, 0] = 1, False
        c.bounds[:] = np.inf, -np.inf
        if self.rule.kind == GUMBEL_RULE:
            uniform = torch.rand(
                shape, generator=generator, dtype=torch.float64, device="cpu"
            ).numpy()
            c.noise[:] = -np.log(-np.log(np.maximum(uniform, 1e-300)))
        seeds = torch.randint(2**63 - 1, (count,), generator=generator, device="cpu")
        c.seeds[:] = seeds.numpy().view(np.uint64)
        self._last, self._largest = None, 1

    def select(self, count: int | None = None) -> SearchLeaves:
        """Walks down each tree to an edge without a child, or to one whose child is done.

        Every selection is followed by `expand` and `backup` of the same leaves.

        Args:
            count: Edges of each tree, found one after the other; they may be equal. One, without a
                dimension of its own, unless given.

        Returns:
            Nodes and actions, int64 `[B]` or `[B, count]`.

        Raises:
            RuntimeError: There are no roots yet.
            ValueError: A count that is not positive.
        """
        self._require_roots()
        if count is not None:
            check_whole("count", count, 1)
        nodes, actions = np.empty((2, self.num_trees, count or 1), np.int64)
        self._loops.select(self.columns, self._rule, nodes, actions)
        edges = (nodes[:, 0], actions[:, 0]) if count is None else (nodes, actions)
        leaves = SearchLeaves(*map(torch.from_numpy, edges))
        self._last, self._expanded = (leaves, nodes, actions), False
        return leaves

    def expand(  # noqa: PLR0913 - what a model gives, entry by entry
        self,
        leaves: SearchLeaves,
        reward: TensorLike,
        logits: TensorLike,
        value: TensorLike,
        *,
        discount: TensorLike = 1.0,
        done: TensorLike | None = None,
        legal: TensorLike | None = None,
    ) -> torch.Tensor:
        """Adds the results of steps as nodes. A leaf whose child is there keeps it as it is.

        Args:
            leaves: As `select` returned them; `[B]` or `[B, k]` in what follows.
            reward: `[B]`, of the step.
            logits: `[B, A]`, of the priors after it.
            value: `[B]`, the estimate after it; not read where `done`.
            discount: `[B]` or a number; -1 where the other player is to move.
            done: bool `[B]`, whether the step ended the episode; nowhere unless given.
            legal: bool `[B, A]` after the step; all actions unless given.

        Returns:
            The numbers of the nodes, int64 of the shape of the leaves, to keep states by.

        Raises:
            RuntimeError: A tree has too few nodes left; nothing is written.
            ValueError: Another shape, an action out of range, numbers that are not finite, or no
                legal action where an episode continues; nothing is written.
        """
        nodes, actions = self._edges(leaves)
        shape = tuple(leaves.node.shape)
        given = (reward, logits, value, discount, done, legal)
        results = results_of(shape, self.num_actions, *given)
        self._require_nodes(nodes, actions)
        children = np.empty_like(nodes)
        self._loops.expand(self.columns, nodes, actions, results, children)
        self._expanded = True
        return torch.from_numpy(children.reshape(shape))

    def backup(self, leaves: SearchLeaves) -> None:
        """Adds the values of leaves to the edges above them, and ends their selection.

        Args:
            leaves: As `select` returned them, expanded.

        Raises:
            ValueError: A leaf that was not expanded, or an action out of range.
        """
        nodes, actions = self._edges(leaves)
        known = self._expanded and self._last is not None and self._last[0] is leaves
        if not known and (self._children(nodes, actions) < 0).any():
            raise ValueError("some leaves have no child yet: call expand before backup.")
        self._loops.backup(self.columns, self._rule, nodes, actions)

    @torch.no_grad()
    def search(self, model: SearchModel[Any], states: TensorLike, simulations: int) -> None:
        """Runs simulations with a model, one call of it for all trees each time.

        The trees keep the states of their nodes meanwhile. It is `select`, a step of the model,
        `expand` and `backup` in turns, in less time.

        Args:
            model: From states `[B, ...]` and actions, int64 `[B]`, to a `SearchStep`.
            states: Those of the roots `[B, ...]`, a tensor or an array of numpy; the model gets
                the same kind, and returns states of their dtype.
            simulations: How many.

        Raises:
            RuntimeError: There are no roots, or fewer nodes left than simulations; nothing is
                written.
            ValueError: Results that `expand` refuses, or states of another dtype or shape.

        Example:
            >>> import torch
            >>> from rl_trees import GumbelHalving, SearchStep
            >>> def walk(state, action):
            ...     after = state + action
            ...     zeros = torch.zeros(len(after), 2)
            ...     return SearchStep(after, after / 8, zeros, zeros[:, 0], 0.9, done=after >= 8)
            >>> trees = MCTSTrees(2, 17, 2, GumbelHalving(16))
            >>> trees.reset(torch.zeros(2, 2))
            >>> trees.search(walk, torch.zeros(2), 16)
            >>> trees.best_actions()
            tensor([1, 1])
        """
        self._require_roots()
        check_type("model", model, Callable, "a function or a module")
        check_whole("simulations", simulations, 1)
        c, loops = self.columns, self._loops
        if (left := self.num_nodes - int(c.size.max())) < simulations:
            raise RuntimeError(
                f"{left} of {self.num_nodes} nodes are left, and {simulations} simulations need as "
                f"many: make MCTSTrees with num_nodes={self.num_nodes - left + simulations} or "
                "more. Nothing was written."
            )
        kept = node_states(states, self.num_trees, self.num_nodes)
        shape, children = (self.num_trees,), np.empty((self.num_trees, 1), np.int64)
        leaves = np.empty((2, self.num_trees, 1), np.int64)
        alone = not c.pending[:, 0].any()  # every selection passes a root
        loops.select(c, self._rule, *leaves)
        for turn in range(1, simulations + 1):
            try:
                step = step_of(model(*kept.given(leaves)))
                after = kept.checked(step.state)
                results = results_of(shape, self.num_actions, *step[1:])
            except BaseException:
                self._unselect(*leaves)
                raise
            # after the last simulation no leaf is selected: its walks would stay pending
            following = np.empty((2, self.num_trees, int(turn < simulations)), np.int64)
            copies = kept.taken(after)
            loops.advance(c, self._rule, leaves, results, copies, children, following, alone)
            kept.keep(children, after)
            leaves = following
        self._last, self._largest = None, int(c.size.max())

    @property
    def sizes(self) -> torch.Tensor:
        """How many nodes each tree has, int64 `[B]`."""
        return torch.from_numpy(self.columns.size)

    @property
    def root_visits(self) -> torch.Tensor:
        """Visits of the actions at the roots, int32 `[B, A]`."""
        return torch.from_numpy(self.columns.visits[:, 0])

    @property
    def root_means(self) -> torch.Tensor:
        """Mean returns of the actions at the roots, float64 `[B, A]`; 0 without visits."""
        visits = self.columns.visits[:, 0]
        return torch.from_numpy(self.columns.totals[:, 0] / np.maximum(visits, 1))

    @property
    def root_values(self) -> torch.Tensor:
        """The means over the estimates of the roots and all returns, float64 `[B]`."""
        c = self.columns
        total = c.value[:, 0] + c.totals[:, 0].sum(1)
        return torch.from_numpy(total / (1 + c.visits[:, 0].sum(1)))

    def policy(self) -> torch.Tensor:
        """What a policy is trained towards, float64 `[B, A]`.

        That is the improved policy softmax(logits + s(Q)) of `GumbelHalving`, and the shares of
        visits of the other rules.
        """
        if self.rule.kind == GUMBEL_RULE:
            return torch.from_numpy(self._root_scores()).softmax(-1)
        visits = self.root_visits.double()
        return visits / visits.sum(-1, keepdim=True).clamp(min=1)

    def best_actions(self) -> torch.Tensor:
        """The actions with the most visits, int64 `[B]`.

        Of equal visits the one with the greatest noise + logits + s(Q) of `GumbelHalving`, with the
        greatest mean return of the other rules.
        """
        legal = self.columns.legal[:, 0]
        if self.rule.kind == GUMBEL_RULE:
            scores = self._root_scores() + self.columns.noise
        else:
            scores = np.where(legal, self.root_means.numpy(), -np.inf)
        visits = np.where(legal, self.columns.visits[:, 0], -1)
        most = visits == visits.max(1, keepdims=True)
        return torch.from_numpy(np.where(most, scores, -np.inf).argmax(1))

    @property
    def _loops(self) -> Any:
        """The loops: compiled ones where numba is installed."""
        return load_compiled(_NUMBA) or numpy_search

    def _edges(self, leaves: SearchLeaves) -> tuple[Ints, Ints]:
        """Nodes and actions `[B, k]`, all in range; those of the last selection are."""
        if self._last is not None and self._last[0] is leaves:
            return self._last[1:]
        grid = (self.num_trees, -1)
        nodes, actions = (x.reshape(grid) for x in _leaves(leaves, self.num_trees))
        sizes = self.columns.size[:, None]
        for name, numbers, limit in (("node", nodes, sizes), ("action", actions, self.num_actions)):
            wrong = np.argwhere((numbers < 0) | (numbers >= limit))
            if len(wrong):
                tree, turn = wrong[0]
                most = np.broadcast_to(limit, numbers.shape)[tree, turn]
                raise ValueError(
                    f"{name} {numbers[tree, turn]} of tree {tree} is out of range [0, {most}): "
                    "pass the leaves that select returned."
                )
        return nodes, actions

    def _root_scores(self) -> Floats:
        """Logits + s(Q) of the roots `[B, A]`."""
        improved = np.empty_like(self.columns.noise)
        self._loops.root_scores(self.columns, self._rule, improved)
        return improved

    def _require_roots(self) -> None:
        """Raises before the first reset."""
        if not self.columns.size[0]:
            raise RuntimeError("there are no roots: call reset first.")

    def _unselect(self, nodes: Ints, actions: Ints) -> None:
        """Takes back a selection `[B, 1]`."""
        c = self.columns
        for tree, (node, action) in enumerate(zip(nodes[:, 0], actions[:, 0], strict=True)):
            c.pending[tree, node, action] -= 1
            while node:
                node, action = c.parent[tree, node], c.action[tree, node]
                c.pending[tree, node, action] -= 1

    def _children(self, nodes: Ints, actions: Ints) -> NDArray[np.int32]:
        """The children of edges `[B, k]`, -1 if there is none."""
        rows = np.arange(len(nodes))[:, None]
        children: NDArray[np.int32] = self.columns.child[rows, nodes, actions]
        return children

    def _require_nodes(self, nodes: Ints, actions: Ints) -> None:
        """Raises where a tree has too few nodes left."""
        c, added = self.columns, nodes.shape[1]
        if self._largest + added > self.num_nodes:
            self._largest = int(c.size.max())
        self._largest += added
        if self._largest <= self.num_nodes:
            return
        new = self._children(nodes, actions) < 0
        for tree in np.flatnonzero(c.size + new.sum(1) > self.num_nodes):
            edges = set(zip(nodes[tree, new[tree]], actions[tree, new[tree]], strict=True))
            left = self.num_nodes - int(c.size[tree])
            if len(edges) > left:
                raise RuntimeError(
                    f"tree {tree} has {left} of {self.num_nodes} nodes left, and {len(edges)} are "
                    "to be added: make MCTSTrees with a larger num_nodes, one for the root and one "
                    "for each simulation. Nothing was written."
                )


def _leaves(leaves: Any, trees: int) -> list[Ints]:
    """Nodes and actions, of one shape with a row for each tree."""
    made = [
        array_of(x, name)
        for name, x in zip(
            SearchLeaves._fields, leaves if isinstance(leaves, tuple) else (), strict=False
        )
    ]
    shapes = {array.shape for array in made}
    kinds = {array.dtype.kind for array in made}
    rows = len(made) == 2 and len(shapes) == 1 and made[0].shape[:1] == (trees,) and made[0].size
    if not rows or made[0].ndim > 2 or not kinds <= {"i", "u"}:
        raise TypeError(
            f"leaves: expected nodes and actions as select returns them, whole numbers "
            f"[{trees}] or [{trees}, k], got {shown(leaves)}."
        )
    return [array.astype(np.int64) for array in made]
