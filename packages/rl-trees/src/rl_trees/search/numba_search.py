"""Selection, expansion and backup tree by tree, compiled by numba: what `numpy_search` does."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

from rl_trees.search.columns import (
    CHILD,
    DISCOUNT,
    EXP3_RULE,
    LOGITS,
    LOSS,
    MEANS,
    MIX,
    PENDING,
    PRIOR,
    PUCT_RULE,
    REWARD,
    TOTALS,
    UCB1_RULE,
    VISITS,
    WEIGHTS,
)
from rl_trees.search.numba_powers import LARGEST, power

_MIX = np.uint64(MIX)
# Nothing is allocated, so views need no counts of references, which would take half of the time.
_options: Any = {"nogil": True, "cache": True, "error_model": "numpy", "_nrt": False}
# a call would pass the columns as more than a hundred numbers on the stack
_inlined: Any = {**_options, "forceinline": True}
# sums in any order; where an action is not legal, numbers are -inf, and nowhere NaN
_loose: Any = {**_inlined, "fastmath": {"reassoc", "nsz", "nnan"}}


@njit(**_options)
def advance(c, rule, leaves, results, copies, children, following, alone):
    """Adds children, backs them up, and selects anew; copies states with them."""
    kept, after, stepped = copies
    expand(c, leaves[0], leaves[1], results, children)
    backup(c, rule, leaves[0], leaves[1])
    if alone:
        descend(c, rule, following[0], following[1], True)
    else:
        select(c, rule, following[0], following[1])
    for tree in range(len(kept)):
        copy(after[tree], kept[tree, children[tree, 0]])
        for node in following[0, tree]:
            copy(kept[tree, node], stepped[tree])


@njit(**_inlined)
def copy(source, target):
    """Copies bytes."""
    for byte in range(len(target)):
        target[byte] = source[byte]


@njit(**_options)
def select(c, rule, nodes, actions):
    """Walks down to k edges without a child in each tree, or to nodes that are done."""
    descend(c, rule, nodes, actions, False)


@njit(**_inlined)
def descend(c, rule, nodes, actions, alone):
    """What `select` does; `alone` says that no selection waits for its backup."""
    for tree in range(nodes.shape[0]):
        for turn in range(nodes.shape[1]):
            node = np.int64(0)
            while True:
                action = choose(c, rule, tree, node, alone)
                c.counts[tree, node, PENDING, action] += 1
                child = np.int64(c.counts[tree, node, CHILD, action])
                if child < 0 or c.done[tree, child]:
                    break
                node = child
            nodes[tree, turn], actions[tree, turn] = node, action


@njit(**_inlined)
def fill_row(c, tree, node, logits, legal, value):
    """Writes the row of a new node."""
    shifted, prior = c.numbers[tree, node, LOGITS], c.numbers[tree, node, PRIOR]
    allowed, child = c.legal[tree, node], c.counts[tree, node, CHILD]
    visits, pending = c.counts[tree, node, VISITS], c.counts[tree, node, PENDING]
    totals, means, weights = (
        c.numbers[tree, node, TOTALS],
        c.numbers[tree, node, MEANS],
        c.numbers[tree, node, WEIGHTS],
    )
    top = -np.inf
    for a in range(len(shifted)):
        allowed[a], child[a] = legal[a], -1
        visits[a], pending[a] = 0, 0
        totals[a], means[a], weights[a] = 0.0, 0.0, 0.0
        shifted[a] = logits[a] if legal[a] else -np.inf
        top = max(top, shifted[a])
    # no action is legal: all are -inf, and -inf - -inf would be NaN
    if not np.isfinite(top):
        top = 0.0
    total = exponentials(shifted, top, prior)
    if total > 0:
        for a in range(len(shifted)):
            prior[a] /= total
    c.value[tree, node] = value


@njit(**_loose)
def exponentials(shifted, top, prior):
    """Takes the greatest logit from all, and fills their exponentials; returns the sum."""
    total = 0.0
    for a in range(len(shifted)):
        shifted[a] -= top
        prior[a] = power(shifted[a])
        total += prior[a]
    return total


@njit(**_options)
def fill(c, trees, nodes, logits, legal, value):
    """Writes the rows of new nodes `[m]`."""
    for row in range(len(trees)):
        fill_row(c, trees[row], nodes[row], logits[row], legal[row], value[row])


@njit(**_options)
def expand(c, nodes, actions, results, children):
    """Adds children; edges that have one keep it."""
    numbers, legal, width = results.numbers, results.legal, c.noise.shape[1]
    for tree in range(nodes.shape[0]):
        for turn in range(nodes.shape[1]):
            node, action = nodes[tree, turn], actions[tree, turn]
            if c.counts[tree, node, CHILD, action] < 0:
                new, given = c.size[tree], numbers[tree, turn]
                c.size[tree] += 1
                fill_row(c, tree, new, given, legal[tree, turn], given[width + 2])
                c.counts[tree, node, CHILD, action] = new
                c.above[tree, new, 0], c.above[tree, new, 1] = node, action
                c.numbers[tree, node, REWARD, action] = given[width]
                c.numbers[tree, node, DISCOUNT, action] = given[width + 1]
                c.done[tree, new] = results.done[tree, turn]
            children[tree, turn] = c.counts[tree, node, CHILD, action]


@njit(**_options)
def backup(c, rule, nodes, actions):
    """Adds the values of leaves to all edges above them."""
    chances = c.scratch[0]
    for tree in range(nodes.shape[0]):
        for turn in range(nodes.shape[1]):
            node, action = nodes[tree, turn], actions[tree, turn]
            leaf = c.counts[tree, node, CHILD, action]
            returns = 0.0 if c.done[tree, leaf] else c.value[tree, leaf]
            while True:
                discount = c.numbers[tree, node, DISCOUNT, action]
                returns = c.numbers[tree, node, REWARD, action] + discount * returns
                if rule.kind == EXP3_RULE:
                    learn(c, rule, tree, node, action, returns, chances)
                c.counts[tree, node, VISITS, action] += 1
                c.counts[tree, node, PENDING, action] -= 1
                c.numbers[tree, node, TOTALS, action] += returns
                mean = c.numbers[tree, node, TOTALS, action] / c.counts[tree, node, VISITS, action]
                c.numbers[tree, node, MEANS, action] = mean
                c.bounds[tree, 0] = min(c.bounds[tree, 0], mean)
                c.bounds[tree, 1] = max(c.bounds[tree, 1], mean)
                if node == 0:
                    break
                action, node = np.int64(c.above[tree, node, 1]), np.int64(c.above[tree, node, 0])


@njit(**_options)
def root_scores(c, rule, improved):
    """Fills logits + s(Q) of the roots `[B, A]`."""
    counts, means = c.scratch[0], c.scratch[1]
    for tree in range(len(improved)):
        visits, totals, every = c.counts[tree, 0, VISITS], c.numbers[tree, 0, TOTALS], 0.0
        for a in range(len(counts)):
            counts[a] = visits[a]
            means[a] = totals[a] / max(counts[a], 1.0)
            every += counts[a]
        found = complete(c, rule, tree, 0, counts, means, improved[tree], every)
        improve(c.numbers[tree, 0, LOGITS], found[0], found[1], improved[tree])


@njit(**_inlined)
def choose(c, rule, tree, node, alone):
    """The action of a node."""
    counts, means, scores = c.scratch[0], c.scratch[1], c.scratch[2]
    if rule.kind == EXP3_RULE:
        return drawn(c, rule, tree, node, scores)
    # rows of the node: an index of three numbers is checked for its signs at each access
    visits, pending = c.counts[tree, node, VISITS], c.counts[tree, node, PENDING]
    totals, legal = c.numbers[tree, node, TOTALS], c.legal[tree, node]
    every, loss = 0.0, rule.parameters[LOSS]
    if alone:
        means = c.numbers[tree, node, MEANS]
        for a in range(len(scores)):
            counts[a] = visits[a]
            every += counts[a]
    else:
        for a in range(len(scores)):  # without branches: whether an action was tried is no pattern
            counts[a] = visits[a] + pending[a]
            means[a] = (totals[a] - loss * pending[a]) / max(counts[a], 1.0)
            every += counts[a]
    if rule.kind == PUCT_RULE:
        puct(c, rule, tree, node, counts, means, scores, every)
    elif rule.kind == UCB1_RULE:
        weighed = np.log(every)
        for a in range(len(scores)):
            bonus = rule.parameters[0] * np.sqrt(weighed / counts[a])
            scores[a] = means[a] + bonus if counts[a] > 0 else np.inf
    else:
        gumbel(c, rule, tree, node, counts, means, scores, every)
    best, top = np.int64(0), -np.inf
    for a in range(len(scores)):
        better = legal[a] and scores[a] > top
        best, top = np.int64(a) if better else best, scores[a] if better else top
    return best


@njit(**_loose)
def puct(c, rule, tree, node, counts, means, scores, every):
    """Scores of PUCT."""
    weight, base, first_play = rule.parameters[0], rule.parameters[1], rule.parameters[2]
    low, high, prior = c.bounds[tree, 0], c.bounds[tree, 1], c.numbers[tree, node, PRIOR]
    normalize = rule.parameters[3] != 0 and high > low
    begin, span = (low, high - low) if normalize else (0.0, 1.0)
    factor = np.sqrt(every) * (weight + np.log((every + base + 1.0) / base))
    for a in range(len(scores)):
        mean = (means[a] - begin) / span if counts[a] > 0 else first_play
        scores[a] = mean + prior[a] * factor / (1.0 + counts[a])


@njit(**_loose)
def gumbel(c, rule, tree, node, counts, means, scores, every):
    """Scores of sequential halving at a root, of the improved policy elsewhere."""
    logits = c.numbers[tree, node, LOGITS]
    if node > 0 and every == 0:  # the policy is the prior
        for a in range(len(scores)):
            scores[a] = logits[a]
        return
    scale, low, most = complete(c, rule, tree, node, counts, means, scores, every)
    if node == 0 and np.int64(every) < c.plan.shape[1]:
        considered, noise, legal = 0, c.noise[tree], c.legal[tree, node]
        for a in range(len(scores)):
            considered += legal[a]
        wanted = c.plan[min(considered, np.int64(rule.parameters[0])), np.int64(every)]
        for a in range(len(scores)):
            if legal[a] and counts[a] == wanted:
                improve(logits, scale, low, scores)
                halve(noise, counts, wanted, scores)
                return
    share, visit = 1.0 / weigh(logits, scale, low, most, scores), 1.0 / (1.0 + every)
    for a in range(len(scores)):  # products: a division takes as long as four of them
        scores[a] = scores[a] * share - counts[a] * visit


@njit(**_loose)
def weigh(logits, scale, low, most, scores):
    """Exponentials of improved logits in place of means, up to a factor; returns their sum."""
    total = 0.0
    if most < LARGEST:  # none is too large for its exponential
        for a in range(len(scores)):
            scores[a] = power(logits[a] + scale * (scores[a] - low))
            total += scores[a]
        return total
    top = improve(logits, scale, low, scores)
    for a in range(len(scores)):
        scores[a] = np.exp(scores[a] - top)
        total += scores[a]
    return total


@njit(**_inlined)
def halve(noise, counts, wanted, scores):
    """Adds noise to the scores of a root, and drops actions with other visits than wanted."""
    for a in range(len(scores)):
        scores[a] = noise[a] + scores[a] if counts[a] == wanted else -np.inf


@njit(**_loose)
def complete(c, rule, tree, node, counts, means, scores, every):
    """Means, with the mixed value for actions without visits; returns scale, least and bound.

    Logits are at most 0, and 0 for one legal action: the greatest improved one is at least 0 and
    at most the bound.
    """
    prior, legal = c.numbers[tree, node, PRIOR], c.legal[tree, node]
    tried, weighted, most = 0.0, 0.0, 0.0
    for a in range(len(scores)):
        share = prior[a] if counts[a] > 0 else 0.0
        tried += share
        weighted += share * means[a]
        most = max(most, counts[a])
    average = weighted / tried if tried > 0 else 0.0
    mixed = (c.value[tree, node] + every * average) / (every + 1.0)
    low, high = np.inf, -np.inf
    for a in range(len(scores)):
        scores[a] = means[a] if counts[a] > 0 else mixed
        low = min(low, scores[a] if legal[a] else np.inf)
        high = max(high, scores[a] if legal[a] else -np.inf)
    most = (rule.parameters[2] + most) * rule.parameters[1]
    return most / max(high - low, 1e-8), low, most


@njit(**_loose)
def improve(logits, scale, low, scores):
    """Logits + s(Q) in place of means; returns the greatest."""
    top = -np.inf
    for a in range(len(scores)):
        scores[a] = logits[a] + scale * (scores[a] - low)  # -inf where an action is not legal
        top = max(top, scores[a])
    return top


@njit(**_inlined)
def fill_chances(c, rule, tree, node, chances):
    """p(a) of EXP3 at a node; returns how many actions are legal."""
    gamma, top, total, legal = rule.parameters[0], -np.inf, 0.0, 0
    for a in range(len(chances)):
        if c.legal[tree, node, a]:
            top, legal = max(top, c.numbers[tree, node, WEIGHTS, a]), legal + 1
    for a in range(len(chances)):
        allowed = c.legal[tree, node, a]
        chances[a] = np.exp(c.numbers[tree, node, WEIGHTS, a] - top) if allowed else 0.0
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
        every += np.uint64(c.counts[tree, node, VISITS, a] + c.counts[tree, node, PENDING, a])
        if c.legal[tree, node, a]:
            last = np.int64(a)
    mixed = (c.seeds[tree] ^ np.uint64(node)) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed = (mixed ^ every) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX
    # the upper 53 bits, as many as a double holds
    uniform, passed = np.float64(mixed >> np.uint64(11)) * 2.0**-53, 0.0
    for a in range(len(chances)):
        passed += chances[a]
        if passed > uniform:
            return np.int64(a)
    # rounding may leave a sum below `uniform`: then the last legal action
    return last


@njit(**_inlined)
def learn(c, rule, tree, node, action, returns, chances):
    """Raises the weight of EXP3 by a return."""
    gamma, low, high = rule.parameters[0], rule.parameters[1], rule.parameters[2]
    legal = fill_chances(c, rule, tree, node, chances)
    gain = min(max((returns - low) / (high - low), 0.0), 1.0)
    c.numbers[tree, node, WEIGHTS, action] += gamma * (gain / chances[action]) / legal
