from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_replay.priorities import numpy_tree
from rl_replay.priorities.tree import MOST_ROOTS, PriorityTree, TreeLayout


def loops():
    """The loops in numpy, and those that numba compiles if it is installed."""
    found = [numpy_tree]
    try:
        from rl_replay.priorities import numba_tree
    except ImportError:
        return found
    return [*found, numba_tree]


class TreeOf(PriorityTree):
    """A tree with the loops of one module."""

    module = numpy_tree

    @property
    def loops(self):
        return self.module


def tree_of(weights, module=numpy_tree):
    tree = TreeOf.private(len(weights))
    tree.module = module
    tree.put(0, np.arange(1, len(weights) + 1, dtype=np.uint32), np.float32(weights))
    return tree


@pytest.mark.parametrize("module", loops())
def test_draws_are_found_by_hand(module):
    tree = tree_of([1, 0, 2, 5], module)
    drawn = tree.draw(np.array([0.0, 0.124, 0.126, 0.374, 0.376, 0.999]))
    assert drawn.positions.tolist() == [0, 0, 2, 2, 3, 3]
    assert drawn.probabilities.tolist() == [0.125, 0.125, 0.25, 0.25, 0.625, 0.625]


@pytest.mark.parametrize("module", loops())
@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 260, 5_000, 70_001])
def test_draws_are_those_of_a_cumulative_sum(module, capacity):
    rng = np.random.default_rng(capacity)
    weights = np.float32(rng.random(capacity) ** 6)
    weights[rng.random(capacity) < 0.4] = 0
    weights[rng.integers(capacity)] = 1
    tree = tree_of(weights, module)
    fractions = rng.random(300)
    drawn = tree.draw(fractions)
    exact = weights.astype(np.float64)
    assert (weights[drawn.positions] > 0).all()
    np.testing.assert_allclose(
        drawn.probabilities, exact[drawn.positions] / exact.sum(), rtol=1e-11
    )
    # the place is that of a plain search, but for fractions at the very edge of a leaf
    ends = exact.cumsum()
    wanted = fractions * ends[-1]
    assert (ends[drawn.positions] >= wanted - 1e-9).all()
    assert (ends[drawn.positions] - exact[drawn.positions] <= wanted + 1e-9).all()


@pytest.mark.parametrize("capacity", [1, 17, 5_000, 70_001])
def test_numba_and_numpy_give_the_same_bits(capacity):
    pytest.importorskip("numba")
    rng = np.random.default_rng(3)
    one, other = (tree_of(rng.random(capacity) * 0, module) for module in loops())
    for _ in range(8):
        positions = rng.integers(0, capacity, 40)
        ids = rng.integers(1, 9, 40).astype(np.uint32)
        weights = np.float32(rng.random(40) ** 9)
        begin = int(rng.integers(capacity))
        run = np.arange(begin, min(begin + 50, capacity), dtype=np.uint32)
        fractions = rng.random(50)
        for tree in (one, other):
            tree.put(begin, run, np.full(len(run), 0.5, np.float32))
            tree.update(positions, ids, weights)
        assert (one.words == other.words).all()
        assert (one.sums == other.sums).all()
        draws = [tree.draw(fractions) for tree in (one, other)]
        assert (draws[0].positions == draws[1].positions).all()
        assert (draws[0].probabilities == draws[1].probabilities).all()


@pytest.mark.parametrize("module", loops())
def test_last_weight_of_a_leaf_counts(module):
    tree = tree_of([1.0] * 20, module)
    places = np.array([3, 7, 3])
    tree.update(places, np.full(3, 9, np.uint32), np.float32([4, 5, 6]))
    assert tree.weights[[3, 7]].tolist() == [6, 5]
    assert tree.ids[[2, 3]].tolist() == [3, 9]
    assert tree.total == 18 + 11


@pytest.mark.parametrize("module", loops())
def test_leaves_without_weight_are_never_drawn(module):
    tree = tree_of([0.0] * 400 + [1e-30] + [0.0] * 400, module)
    edges = [0.0, 0.5, np.nextafter(1.0, 0.0)]
    assert tree.draw(np.array(edges)).positions.tolist() == [400] * 3
    tree.put(400, np.zeros(1, np.uint32), np.zeros(1, np.float32))
    assert tree.draw(np.array(edges)).positions.tolist() == [-1] * 3


@pytest.mark.parametrize("module", loops())
def test_sums_that_promise_what_leaves_do_not_have_are_told(module):
    tree = tree_of([1.0] * 600, module)
    tree.words[:300] = 0  # as where another process is in the middle of a change
    drawn = tree.draw(np.linspace(0, 1, 50, endpoint=False))
    missing = drawn.positions < 0
    assert 0 < missing.sum() < 50
    assert (drawn.positions[~missing] >= 300).all()
    assert (drawn.probabilities[missing] == 0).all()


@pytest.mark.parametrize("module", loops())
def test_probabilities_are_true_where_sums_are_wrong(module):
    rng = np.random.default_rng(0)
    weights = rng.random(700)
    tree = tree_of(weights, module)
    tree.sums *= rng.uniform(0.7, 1.3, len(tree.sums))
    drawn = tree.draw(rng.random(200_000))
    # the mean of 1 / (N p) is 1 whatever the probabilities were
    ratio = 1 / (len(weights) * drawn.probabilities)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


@given(st.integers(1, 3_000_000))
def test_layouts_have_whole_blocks_and_few_roots(capacity):
    layout = TreeLayout.of(capacity)
    sizes = [layout.leaves, *np.diff(layout.begins)]
    assert capacity <= layout.leaves < capacity + 16
    assert sizes[-1] <= MOST_ROOTS
    for below, above in pairwise(sizes):
        assert below % 16 == 0
        assert below // 16 <= above < below // 16 + 16
