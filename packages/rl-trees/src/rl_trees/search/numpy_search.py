"""Selection, expansion and backup in numpy, one step of all trees at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_tensordict.types import Floats, Ints
from rl_trees.search.columns import (
    EXP3_RULE,
    LOSS,
    MIX,
    PUCT_RULE,
    UCB1_RULE,
    Rule,
    SearchColumns,
)
from rl_trees.search.model import Copies
from rl_trees.search.results import Results


def advance(  # noqa: PLR0913 - what a round reads and writes, one by one
    c: SearchColumns,
    rule: Rule,
    leaves: Ints,
    results: Results,
    copies: Copies,
    children: Ints,
    following: Ints,
    alone: bool,
) -> None:
    """Adds children, backs them up, and selects anew; copies states with them."""
    del alone  # whether no other selection waits for its backup, which saves nothing here
    kept, after, stepped = copies
    trees = np.arange(len(c.size))
    expand(c, leaves[0], leaves[1], results, children)
    backup(c, rule, leaves[0], leaves[1])
    select(c, rule, following[0], following[1])
    if kept.shape[2]:
        kept[trees, children[:, 0]] = after
        for nodes in following[0].T:
            stepped[:] = kept[trees, nodes]


def select(c: SearchColumns, rule: Rule, nodes: Ints, actions: Ints) -> None:
    """Walks down to k edges without a child in each tree, or to nodes that are done."""
    trees = np.arange(len(c.size))
    for turn in range(nodes.shape[1]):
        here, node = trees, np.zeros(len(trees), np.int64)
        while len(here):
            action = choose(c, rule, here, node)
            c.pending[here, node, action] += 1
            child = c.child[here, node, action].astype(np.int64)
            ends = (child < 0) | c.done[here, child]
            nodes[here[ends], turn], actions[here[ends], turn] = node[ends], action[ends]
            # trees whose walk has ended drop out; `here` are the others [m]
            here, node = here[~ends], child[~ends]


def fill(
    c: SearchColumns, trees: Ints, nodes: Ints, logits: Floats, legal: Any, value: Floats
) -> None:
    """Writes the rows of new nodes `[m]`."""
    # softmax over legal actions; all are illegal in a node that is done, whose top is -inf
    masked = np.where(legal, logits, -np.inf)
    top = masked.max(1, initial=-np.inf, keepdims=True)
    shifted = masked - np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(shifted)
    total = np.cumsum(weights, 1)[:, -1:]  # in the order of a loop
    at = (trees, nodes)
    c.prior[at] = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    c.logits[at] = shifted
    c.legal[at], c.value[at] = legal, value
    c.child[at] = -1
    for column in (c.visits, c.pending, c.totals, c.means, c.reward, c.discount, c.weights):
        column[at] = 0


def expand(c: SearchColumns, nodes: Ints, actions: Ints, results: Results, children: Ints) -> None:
    """Adds children `[B, k]`; edges that have one keep it."""
    trees, r = np.arange(len(nodes)), results
    for turn in range(nodes.shape[1]):
        node, action = nodes[:, turn], actions[:, turn]
        # edges of one tree may be equal: its later turns find the child of the earlier ones
        new = c.child[trees, node, action] < 0
        t, n, a = trees[new], node[new], action[new]
        added = c.size[t]
        c.size[t] += 1
        given = r.numbers[new, turn]
        reward, discount, value = given[:, -3:].T
        fill(c, t, added, given[:, :-3], r.legal[new, turn], value)
        c.child[t, n, a], c.parent[t, added], c.action[t, added] = added, n, a
        c.reward[t, n, a], c.discount[t, n, a] = reward, discount
        c.done[t, added] = r.done[new, turn]
        children[:, turn] = c.child[trees, node, action]


def backup(c: SearchColumns, rule: Rule, nodes: Ints, actions: Ints) -> None:
    """Adds the values of leaves to all edges above them."""
    for turn in range(nodes.shape[1]):
        here = np.arange(len(nodes))
        node, action = nodes[:, turn], actions[:, turn]
        leaf = c.child[here, node, action]
        returns = np.where(c.done[here, leaf], 0.0, c.value[here, leaf])
        while len(here):
            at = (here, node, action)
            # the value of the child becomes the return of the edge above it
            returns = c.reward[at] + c.discount[at] * returns
            if rule.kind == EXP3_RULE:
                learn(c, rule, here, node, action, returns)
            c.visits[at] += 1
            c.pending[at] -= 1
            c.totals[at] += returns
            mean = c.means[at] = c.totals[at] / c.visits[at]
            c.bounds[here, 0] = np.minimum(c.bounds[here, 0], mean)
            c.bounds[here, 1] = np.maximum(c.bounds[here, 1], mean)
            # an edge that leaves the root, node 0, is the last of its walk
            below = node > 0
            here, node, returns = here[below], node[below], returns[below]
            action = c.action[here, node].astype(np.int64)
            node = c.parent[here, node].astype(np.int64)


def choose(c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints) -> Ints:
    """The action of each node `[m]`."""
    at = (trees, nodes)
    if rule.kind == EXP3_RULE:
        return drawn(c, rule, trees, nodes)
    count = (c.visits[at] + c.pending[at]).astype(np.float64)
    # walks that are not backed up yet count as visits with a virtual loss
    totals = c.totals[at] - rule.parameters[LOSS] * c.pending[at]
    means = np.divide(totals, count, out=np.zeros_like(totals), where=count > 0)
    legal = c.legal[at]
    if rule.kind == PUCT_RULE:
        scores = puct(c, rule, trees, nodes, count, means)
    elif rule.kind == UCB1_RULE:
        every = count.sum(1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = means + rule.parameters[0] * np.sqrt(np.log(every) / count)
        # 0 / 0 and log(N) / 0: every action is tried once first
        scores[count == 0] = np.inf
    else:
        scores = gumbel(c, rule, trees, nodes, count, means)
    best: Ints = np.where(legal, scores, -np.inf).argmax(1)
    return best


def puct(
    c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints, count: Floats, means: Floats
) -> Floats:
    """Scores `[m, A]` of PUCT."""
    weight, base, first_play, normalize = rule.parameters[:4]
    every = count.sum(1, keepdims=True)
    if normalize:
        low, high = c.bounds[trees, :1], c.bounds[trees, 1:]
        spread = high > low
        means = np.where(spread, (means - low) / np.where(spread, high - low, 1.0), means)
    means = np.where(count > 0, means, first_play)
    factor = weight + np.log((every + base + 1.0) / base)
    scores: Floats = means + c.prior[trees, nodes] * (np.sqrt(every) * factor) / (1.0 + count)
    return scores


def gumbel(
    c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints, count: Floats, means: Floats
) -> Floats:
    """Scores `[m, A]`: those of sequential halving at roots, of the improved policy elsewhere."""
    logits, legal = c.logits[trees, nodes], c.legal[trees, nodes]
    improved = logits + advantage(c, rule, trees, nodes, count, means)
    masked = np.where(legal, improved, -np.inf)
    weights = np.exp(masked - masked.max(1, keepdims=True))
    every = count.sum(1)
    share, visit = 1.0 / weights.sum(1, keepdims=True), 1.0 / (1.0 + every[:, None])
    scores: Floats = weights * share - count * visit
    # at a root with plan left, only actions with as many visits as the plan says compete
    simulation = every.astype(np.int64)
    considered = np.minimum(legal.sum(1), int(rule.parameters[0]))
    halving = (nodes == 0) & (simulation < c.plan.shape[1])
    wanted = c.plan[considered[halving], simulation[halving]]
    allowed = legal[halving] & (count[halving] == wanted[:, None])
    noisy = np.where(allowed, c.noise[trees[halving]] + improved[halving], -np.inf)
    scores[halving] = np.where(allowed.any(1, keepdims=True), noisy, scores[halving])
    return scores


def advantage(
    c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints, count: Floats, means: Floats
) -> Floats:
    """s(Q) `[m, A]`, with the mixed value for actions without visits."""
    _, scale, offset = rule.parameters[:3]
    prior, visited = c.prior[trees, nodes], count > 0
    every = count.sum(1)
    tried = np.where(visited, prior, 0.0).sum(1)
    weighted = np.where(visited, prior * means, 0.0).sum(1)
    average = np.divide(weighted, tried, out=np.zeros_like(tried), where=tried > 0)
    # the mixed value: the node's own estimate, and N times the mean by the priors of tried actions
    mixed = (c.value[trees, nodes] + every * average) / (every + 1.0)
    completed = np.where(visited, means, mixed[:, None])
    legal = c.legal[trees, nodes]
    low = np.where(legal, completed, np.inf).min(1, keepdims=True)
    high = np.where(legal, completed, -np.inf).max(1, keepdims=True)
    factor = (offset + count.max(1, keepdims=True)) * scale / np.maximum(high - low, 1e-8)
    return factor * (completed - low)  # type: ignore[no-any-return]


def probabilities(c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints) -> Floats:
    """p(a) `[m, A]` of EXP3."""
    gamma, legal = rule.parameters[0], c.legal[trees, nodes]
    masked = np.where(legal, c.weights[trees, nodes], -np.inf)
    weights = np.exp(masked - masked.max(1, keepdims=True))
    total = np.cumsum(weights, 1)[:, -1:]  # in the order of a loop
    even = gamma / legal.sum(1, keepdims=True)
    found: Floats = np.where(legal, (1.0 - gamma) * (weights / total) + even, 0.0)
    return found


def drawn(c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints) -> Ints:
    """Actions that are drawn by EXP3: numbers in [0, 1) are hashes, the same in every loop."""
    at = (trees, nodes)
    chances = probabilities(c, rule, trees, nodes)
    every = (c.visits[at] + c.pending[at]).sum(1).astype(np.uint64)
    mixed = c.seeds[trees]
    # seed, node and visits name the draw, so no state of a generator is kept
    for word in (nodes.astype(np.uint64), every):
        mixed = (mixed ^ word) * np.uint64(MIX)
        mixed = mixed ^ (mixed >> np.uint64(32))
    mixed = mixed * np.uint64(MIX)
    # the upper 53 bits, as many as a double holds
    uniform = (mixed >> np.uint64(11)) * 2.0**-53
    passed = np.cumsum(chances, 1) > uniform[:, None]
    # where rounding leaves a little over, the last legal action
    last = c.prior.shape[2] - 1 - c.legal[at][:, ::-1].argmax(1)
    actions: Ints = np.where(passed.any(1), passed.argmax(1), last)
    return actions


def learn(
    c: SearchColumns, rule: Rule, trees: Ints, nodes: Ints, actions: Ints, returns: Floats
) -> None:
    """Raises the weights of EXP3 by returns."""
    gamma, low, high = rule.parameters[:3]
    chance = probabilities(c, rule, trees, nodes)[np.arange(len(trees)), actions]
    gain = np.clip((returns - low) / (high - low), 0.0, 1.0)
    count = c.legal[trees, nodes].sum(1)
    c.weights[trees, nodes, actions] += gamma * (gain / chance) / count


def root_scores(c: SearchColumns, rule: Rule, improved: Floats) -> None:
    """Fills logits + s(Q) of the roots `[B, A]`."""
    trees = np.arange(len(c.size))
    nodes = np.zeros_like(trees)
    count = c.visits[:, 0].astype(np.float64)
    means = np.divide(c.totals[:, 0], count, out=np.zeros_like(count), where=count > 0)
    improved[:] = c.logits[:, 0] + advantage(c, rule, trees, nodes, count, means)
