"""Selection, expansion and backup tree by tree, compiled by numba: what `numpy_search` does."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

from rl_trees.search.columns import EXP3_RULE, LOSS, MIX, PUCT_RULE, UCB1_RULE

_MIX = np.uint64(MIX)
_options: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
# a call would pass the columns as more than a hundred numbers on the stack
_inlined: Any = {**_options, "forceinline": True}


@njit(**_options)
def select(c, rule, count):
    """Walks down to `count` edges without a child in each tree, or to nodes that are done."""
    trees, width = c.noise.shape
    nodes, actions = np.empty((trees, count), np.int64), np.empty((trees, count), np.int64)
    scores, means = np.empty(width), np.empty(width)
    for tree in range(trees):
        for turn in range(count):
            node = np.int64(0)
            while True:
                action = choose(c, rule, tree, node, scores, means)
                c.pending[tree, node, action] += 1
                child = np.int64(c.child[tree, node, action])
                if child < 0 or c.done[tree, child]:
                    break
                node = child
            nodes[tree, turn], actions[tree, turn] = node, action
    return nodes, actions


@njit(**_inlined)
def fill_row(c, tree, node, logits, legal, value):
    """Writes the row of a new node."""
    top, total = -np.inf, 0.0
    for a in range(len(logits)):
        if legal[a]:
            top = max(top, logits[a])
    if not np.isfinite(top):
        top = 0.0
    for a in range(len(logits)):
        shifted = logits[a] - top if legal[a] else -np.inf
        c.logits[tree, node, a], c.prior[tree, node, a] = shifted, np.exp(shifted)
        total += c.prior[tree, node, a]
        c.legal[tree, node, a], c.child[tree, node, a] = legal[a], -1
        c.visits[tree, node, a], c.pending[tree, node, a] = 0, 0
        c.totals[tree, node, a], c.weights[tree, node, a] = 0.0, 0.0
    if total > 0:
        for a in range(len(logits)):
            c.prior[tree, node, a] /= total
    c.value[tree, node] = value


@njit(**_options)
def fill(c, trees, nodes, logits, legal, value):
    """Writes the rows of new nodes `[m]`."""
    for row in range(len(trees)):
        fill_row(c, trees[row], nodes[row], logits[row], legal[row], value[row])


@njit(**_options)
def expand(c, nodes, actions, reward, discount, done, logits, legal, value):
    """Adds children; edges that have one keep it."""
    children = np.empty_like(nodes)
    for tree in range(nodes.shape[0]):
        for turn in range(nodes.shape[1]):
            node, action = nodes[tree, turn], actions[tree, turn]
            if c.child[tree, node, action] < 0:
                new = c.size[tree]
                c.size[tree] += 1
                fill_row(c, tree, new, logits[tree, turn], legal[tree, turn], value[tree, turn])
                c.child[tree, node, action] = new
                c.parent[tree, new], c.action[tree, new] = node, action
                c.reward[tree, node, action] = reward[tree, turn]
                c.discount[tree, node, action] = discount[tree, turn]
                c.done[tree, new] = done[tree, turn]
            children[tree, turn] = c.child[tree, node, action]
    return children


@njit(**_options)
def backup(c, rule, nodes, actions):
    """Adds the values of leaves to all edges above them."""
    chances = np.empty(c.noise.shape[1])
    for tree in range(nodes.shape[0]):
        for turn in range(nodes.shape[1]):
            node, action = nodes[tree, turn], actions[tree, turn]
            leaf = c.child[tree, node, action]
            returns = 0.0 if c.done[tree, leaf] else c.value[tree, leaf]
            while True:
                discount = c.discount[tree, node, action]
                returns = c.reward[tree, node, action] + discount * returns
                if rule.kind == EXP3_RULE:
                    learn(c, rule, tree, node, action, returns, chances)
                c.visits[tree, node, action] += 1
                c.pending[tree, node, action] -= 1
                c.totals[tree, node, action] += returns
                mean = c.totals[tree, node, action] / c.visits[tree, node, action]
                c.bounds[tree, 0] = min(c.bounds[tree, 0], mean)
                c.bounds[tree, 1] = max(c.bounds[tree, 1], mean)
                if node == 0:
                    break
                action, node = np.int64(c.action[tree, node]), np.int64(c.parent[tree, node])


@njit(**_inlined)
def choose(c, rule, tree, node, scores, means):
    """The action of a node; `scores` and `means` are scratch."""
    if rule.kind == EXP3_RULE:
        return drawn(c, rule, tree, node, scores)
    # rows of the node: an index of three numbers is checked for its signs at each access
    visits, pending = c.visits[tree, node], c.pending[tree, node]
    totals, legal = c.totals[tree, node], c.legal[tree, node]
    every, loss = 0.0, rule.parameters[LOSS]
    for a in range(len(scores)):
        count = np.float64(visits[a] + pending[a])
        means[a] = (totals[a] - loss * pending[a]) / count if count > 0 else 0.0
        every += count
    if rule.kind == PUCT_RULE:
        puct(c, rule, tree, c.prior[tree, node], visits, pending, every, means, scores)
    elif rule.kind == UCB1_RULE:
        for a in range(len(scores)):
            count = np.float64(visits[a] + pending[a])
            scores[a] = np.inf
            if count > 0:
                scores[a] = means[a] + rule.parameters[0] * np.sqrt(np.log(every) / count)
    else:
        gumbel(c, rule, tree, node, visits, pending, legal, every, means, scores)
    best, top = np.int64(0), -np.inf
    for a in range(len(scores)):
        if legal[a] and scores[a] > top:
            best, top = np.int64(a), scores[a]
    return best


@njit(**_inlined)
def puct(c, rule, tree, prior, visits, pending, every, means, scores):
    """Scores of PUCT."""
    weight, base, first_play = rule.parameters[0], rule.parameters[1], rule.parameters[2]
    low, high = c.bounds[tree, 0], c.bounds[tree, 1]
    normalize = rule.parameters[3] != 0 and high > low
    factor = np.sqrt(every) * (weight + np.log((every + base + 1.0) / base))
    for a in range(len(scores)):
        count = np.float64(visits[a] + pending[a])
        mean = first_play
        if count > 0:
            mean = (means[a] - low) / (high - low) if normalize else means[a]
        scores[a] = mean + prior[a] * factor / (1.0 + count)


@njit(**_inlined)
def gumbel(c, rule, tree, node, visits, pending, legal, every, means, scores):
    """Scores of sequential halving at a root, of the improved policy elsewhere."""
    improve(c, rule, tree, node, visits, pending, legal, every, means, scores)
    if node == 0 and np.int64(every) < c.plan.shape[1]:
        considered = 0
        for a in range(len(scores)):
            considered += legal[a]
        wanted = c.plan[min(considered, np.int64(rule.parameters[0])), np.int64(every)]
        for a in range(len(scores)):
            if legal[a] and visits[a] + pending[a] == wanted:
                halve(c.noise[tree], visits, pending, wanted, scores)
                return
    top, total = -np.inf, 0.0
    for a in range(len(scores)):
        if legal[a]:
            top = max(top, scores[a])
    for a in range(len(scores)):
        scores[a] = np.exp(scores[a] - top) if legal[a] else 0.0
        total += scores[a]
    for a in range(len(scores)):
        count = np.float64(visits[a] + pending[a])
        scores[a] = scores[a] / total - count / (1.0 + every)


@njit(**_inlined)
def halve(noise, visits, pending, wanted, scores):
    """Adds noise to the scores of a root, and drops actions with other visits than wanted."""
    for a in range(len(scores)):
        scores[a] = noise[a] + scores[a] if visits[a] + pending[a] == wanted else -np.inf


@njit(**_inlined)
def improve(c, rule, tree, node, visits, pending, legal, every, means, scores):
    """Logits + s(Q), with the mixed value for actions without visits."""
    prior, logits = c.prior[tree, node], c.logits[tree, node]
    scale, offset = rule.parameters[1], rule.parameters[2]
    tried, weighted, most = 0.0, 0.0, 0.0
    for a in range(len(scores)):
        count = np.float64(visits[a] + pending[a])
        most = max(most, count)
        if count > 0:
            tried += prior[a]
            weighted += prior[a] * means[a]
    average = weighted / tried if tried > 0 else 0.0
    mixed = (c.value[tree, node] + every * average) / (every + 1.0)
    low, high = np.inf, -np.inf
    for a in range(len(scores)):
        scores[a] = means[a] if visits[a] + pending[a] > 0 else mixed
        if legal[a]:
            low, high = min(low, scores[a]), max(high, scores[a])
    for a in range(len(scores)):
        unit = (scores[a] - low) / max(high - low, 1e-8)
        scores[a] = logits[a] + (offset + most) * scale * unit


@njit(**_inlined)
def fill_chances(c, rule, tree, node, chances):
    """p(a) of EXP3 at a node; returns how many actions are legal."""
    gamma, top, total, legal = rule.parameters[0], -np.inf, 0.0, 0
    for a in range(len(chances)):
        if c.legal[tree, node, a]:
            top, legal = max(top, c.weights[tree, node, a]), legal + 1
    for a in range(len(chances)):
        allowed = c.legal[tree, node, a]
        chances[a] = np.exp(c.weights[tree, node, a] - top) if allowed else 0.0
        total += chances[a]
    for a in range(len(chances)):
        if c.legal[tree, node, a]:
            chances[a] = (1.0 - gamma) * (chances[a] / total) + gamma / legal
    return legal


@njit(**_inlined)
def drawn(c, rule, tree, node, chances):
    """An action that is drawn by EXP3."""
    fill_chances(c, rule, tree, node, chances)
    every, last = np.uint64(0), np.int64(0)
    for a in range(len(chances)):
        every += np.uint64(c.visits[tree, node, a] + c.pending[tree, node, a])
        if c.legal[tree, node, a]:
            last = np.int64(a)
    mixed = (c.seeds[tree] ^ np.uint64(node)) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed = (mixed ^ every) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX
    uniform, passed = np.float64(mixed >> np.uint64(11)) * 2.0**-53, 0.0
    for a in range(len(chances)):
        passed += chances[a]
        if passed > uniform:
            return np.int64(a)
    return last


@njit(**_inlined)
def learn(c, rule, tree, node, action, returns, chances):
    """Raises the weight of EXP3 by a return."""
    gamma, low, high = rule.parameters[0], rule.parameters[1], rule.parameters[2]
    legal = fill_chances(c, rule, tree, node, chances)
    gain = min(max((returns - low) / (high - low), 0.0), 1.0)
    c.weights[tree, node, action] += gamma * (gain / chances[action]) / legal
