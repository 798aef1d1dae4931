"""Searches against a search by recursion, in random games."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from rl_layout import compiled
from rl_trees import EXP3, PUCT, UCB1, GumbelHalving, MCTSTrees
from rl_trees.search.columns import MIX

RULES = [
    PUCT(),
    PUCT(c=0.7, c_base=20.0, first_play=0.3, normalize=True),
    UCB1(),
    EXP3(gamma=0.3, low=-2.0, high=2.0),
    GumbelHalving(24, max_considered=3),
    GumbelHalving(24),
    GumbelHalving(24, value_scale=15.0),  # improved logits of more than 700
]
SIMULATIONS, ACTIONS = 24, 5


@dataclass
class Step:
    """What a random game gives at a place, which is a tuple of actions."""

    reward: float
    discount: float
    done: bool
    value: float
    logits: list[float]
    legal: list[bool]


def step_at(game, place):
    rng = random.Random(f"{game} {place}")
    done = bool(place) and rng.random() < 0.15
    legal = [rng.random() < 0.7 for _ in range(ACTIONS)]
    legal[rng.randrange(ACTIONS)] = True
    return Step(
        rng.uniform(-1, 1),
        rng.choice([1.0, 0.9, -1.0]),
        done,
        rng.uniform(-1, 1),
        [rng.gauss(0, 1) for _ in range(ACTIONS)],
        legal,
    )


@dataclass
class Node:
    """A node of the obvious implementation."""

    step: Step
    number: int = 0
    children: dict[int, Node] = field(default_factory=dict)
    visits: list[int] = field(default_factory=lambda: [0] * ACTIONS)
    totals: list[float] = field(default_factory=lambda: [0.0] * ACTIONS)
    weights: list[float] = field(default_factory=lambda: [0.0] * ACTIONS)

    @property
    def legal(self):
        return [a for a in range(ACTIONS) if self.step.legal[a]]

    @property
    def prior(self):
        top = max(self.step.logits[a] for a in self.legal)
        weights = [
            math.exp(self.step.logits[a] - top) if a in self.legal else 0.0 for a in range(ACTIONS)
        ]
        return [w / sum(weights) for w in weights]

    def mean(self, a):
        return self.totals[a] / self.visits[a]


class Search:
    """A search in one tree by recursion, as a textbook has it."""

    def __init__(self, rule, game, seed, noise):
        self.rule, self.game, self.seed, self.noise = rule, game, seed, noise
        self.bounds = [math.inf, -math.inf]
        self.size = 1
        self.root = Node(step_at(game, ()))
        for _ in range(SIMULATIONS):
            self.descend(self.root, ())

    def descend(self, node, place):
        """One simulation below a node; returns its return as seen from there."""
        a = self.choose(node)
        child = node.children.get(a)
        if child is None:
            child = node.children[a] = Node(step_at(self.game, (*place, a)), self.size)
            self.size += 1
            below = 0.0 if child.step.done else child.step.value
        elif child.step.done:
            below = 0.0
        else:
            below = self.descend(child, (*place, a))
        total = child.step.reward + child.step.discount * below
        if isinstance(self.rule, EXP3):
            gain = min(max((total - self.rule.low) / (self.rule.high - self.rule.low), 0.0), 1.0)
            node.weights[a] += self.rule.gamma * (gain / self.chances(node)[a]) / len(node.legal)
        node.visits[a] += 1
        node.totals[a] += total
        self.bounds = [min(self.bounds[0], node.mean(a)), max(self.bounds[1], node.mean(a))]
        return total

    def choose(self, node):
        if isinstance(self.rule, EXP3):
            return self.draw(node)
        return max(node.legal, key=lambda a: (self.score(node, a), -a))

    def score(self, node, a):
        rule, n, every = self.rule, node.visits[a], sum(node.visits)
        if isinstance(rule, UCB1):
            return node.mean(a) + rule.c * math.sqrt(math.log(every) / n) if n else math.inf
        if isinstance(rule, PUCT):
            mean = node.mean(a) if n else rule.first_play
            low, high = self.bounds
            if n and rule.normalize and high > low:
                mean = (mean - low) / (high - low)
            c = rule.c + math.log((every + rule.c_base + 1) / rule.c_base)
            return mean + node.prior[a] * (math.sqrt(every) * c) / (1 + n)
        improved = self.improved(node)
        if node is self.root and every < rule.num_simulations:
            wanted = halving(min(rule.max_considered, len(node.legal)), rule.num_simulations)
            return self.noise[a] + improved[a] if n == wanted[every] else -math.inf
        weights = [math.exp(x - max(improved)) for x in improved]
        return weights[a] / sum(weights) - n / (1 + every)

    def improved(self, node):
        """log prior + s(Q)."""
        prior, every = node.prior, sum(node.visits)
        tried = [a for a in range(ACTIONS) if node.visits[a]]
        mass = sum(prior[a] for a in tried)
        average = sum(prior[a] * node.mean(a) for a in tried) / mass if tried else 0.0
        mixed = (node.step.value + every * average) / (every + 1)
        q = [node.mean(a) if node.visits[a] else mixed for a in range(ACTIONS)]
        low, high = min(q[a] for a in node.legal), max(q[a] for a in node.legal)
        scale = (self.rule.visit_offset + max(node.visits)) * self.rule.value_scale
        return [
            math.log(prior[a]) + scale * (q[a] - low) / max(high - low, 1e-8)
            if a in node.legal
            else -math.inf
            for a in range(ACTIONS)
        ]

    def chances(self, node):
        top = max(node.weights[a] for a in node.legal)
        weights = [
            math.exp(node.weights[a] - top) if a in node.legal else 0.0 for a in range(ACTIONS)
        ]
        g = self.rule.gamma
        return [
            (1 - g) * (weights[a] / sum(weights)) + g / len(node.legal) if a in node.legal else 0.0
            for a in range(ACTIONS)
        ]

    def draw(self, node):
        mixed = self.seed
        for word in (node.number, sum(node.visits)):
            mixed = (mixed ^ word) * MIX % 2**64
            mixed ^= mixed >> 32
        uniform, passed = (mixed * MIX % 2**64 >> 11) / 2**53, 0.0
        for a, chance in enumerate(self.chances(node)):
            passed += chance
            if passed > uniform:
                return a
        raise AssertionError


def halving(considered, simulations):
    """Visits that each simulation looks for: half of the actions are left after each phase."""
    if considered == 1:
        return [*range(simulations)]
    plan, visits, phases, left = [], [0] * considered, math.ceil(math.log2(considered)), considered
    while len(plan) < simulations:
        for _ in range(max(1, simulations // (phases * left))):
            plan += visits[:left]
            visits[:left] = [v + 1 for v in visits[:left]]
        left = max(2, left // 2)
    return plan[:simulations]


def batch_of(steps):
    """Steps as the columns that a model gives."""
    return {
        "reward": torch.tensor([s.reward for s in steps], dtype=torch.float64),
        "logits": torch.tensor([s.logits for s in steps], dtype=torch.float64),
        "value": torch.tensor([s.value for s in steps], dtype=torch.float64),
        "discount": torch.tensor([s.discount for s in steps], dtype=torch.float64),
        "done": torch.tensor([s.done for s in steps]),
        "legal": torch.tensor([s.legal for s in steps]),
    }


def searched(rule, games, count=None):
    """Trees after a search in some random games."""
    trees = MCTSTrees(len(games), 1 + SIMULATIONS * (count or 1), ACTIONS, rule)
    roots = batch_of([step_at(game, ()) for game in games])
    generator = torch.Generator().manual_seed(games[0])
    trees.reset(roots["logits"], roots["value"], roots["legal"], generator=generator)
    places = {(row, 0): () for row in range(len(games))}
    for _ in range(SIMULATIONS):
        leaves = trees.select(count)
        nodes, actions = (x.reshape(len(games), -1).tolist() for x in leaves)
        reached = [
            [(*places[row, n], a) for n, a in zip(nodes[row], actions[row], strict=True)]
            for row in range(len(games))
        ]
        steps = batch_of([step_at(g, p) for g, r in zip(games, reached, strict=True) for p in r])
        shape = leaves.node.shape
        steps = {name: x.reshape(*shape, *x.shape[1:]) for name, x in steps.items()}
        children = trees.expand(leaves, **steps).reshape(len(games), -1).tolist()
        for row, numbers in enumerate(children):
            places.update({(row, n): p for n, p in zip(numbers, reached[row], strict=True)})
        trees.backup(leaves)
    return trees


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("actions", [5, 11])
def test_visits_are_those_of_a_recursive_search(loops, monkeypatch, actions, rule):
    """All nodes of 1,190 trees of 170 random games by seven rules, and of 40 games of more actions.

    Several actions are scored at a time, and the last ones of eleven by themselves.
    """
    monkeypatch.setattr(sys.modules[__name__], "ACTIONS", actions)
    games = [*range(170 if actions == 5 else 40)]
    trees = searched(rule, games)
    c = trees.columns
    for row, game in enumerate(games):
        search = Search(rule, game, int(c.seeds[row]), c.noise[row].tolist())
        assert trees.root_visits[row].tolist() == search.root.visits
        assert trees.sizes[row] == search.size
        left = [(search.root, 0)]
        while left:
            node, number = left.pop()
            assert c.visits[row, number].tolist() == node.visits
            assert c.totals[row, number].tolist() == pytest.approx(node.totals)
            left += [(child, int(c.child[row, number, a])) for a, child in node.children.items()]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("count", [1, 3])
def test_loops_of_numpy_and_numba_grow_the_same_trees(monkeypatch, rule, count):
    pytest.importorskip("numba")
    compiled.forget_imports()
    fast = searched(rule, [*range(40)], count)
    monkeypatch.setitem(sys.modules, "rl_trees.search.numba_search", None)
    compiled.forget_imports()
    slow = searched(rule, [*range(40)], count)
    monkeypatch.undo()
    compiled.forget_imports()
    assert torch.equal(fast.sizes, slow.sizes)
    for row, size in enumerate(fast.sizes.tolist()):
        for name in ("child", "visits", "pending"):
            one, other = (getattr(trees.columns, name)[row, :size] for trees in (fast, slow))
            assert np.array_equal(one, other)
        assert not fast.columns.pending[row, :size].any()


def test_policy_of_gumbel_is_the_improved_one():
    trees = searched(GumbelHalving(SIMULATIONS), [7])
    search = Search(trees.rule, 7, 0, trees.columns.noise[0].tolist())
    improved = search.improved(search.root)
    weights = [math.exp(x) for x in improved]
    assert trees.policy()[0].tolist() == pytest.approx([w / sum(weights) for w in weights])
    visits = search.root.visits
    most = [a for a in range(ACTIONS) if visits[a] == max(visits)]
    best = max(most, key=lambda a: improved[a] + search.noise[a])
    assert trees.best_actions().tolist() == [best]
