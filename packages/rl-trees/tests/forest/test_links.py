from __future__ import annotations

import functools
import operator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_trees.forest.links import EdgeLinks


@given(st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=5))
def test_edges_of_a_node_are_a_list(batches):
    links, expected, count = EdgeLinks(), {}, 0
    for parents in batches:
        links.append(count, np.array(parents, np.int64), 7)
        for parent in parents:
            expected.setdefault(parent, []).append(count)
            count += 1
        nodes = np.array([5, 0, 1, 5, 6])
        edges, counts = links.of(nodes)
        lists = [expected.get(node, []) for node in nodes.tolist()]
        assert counts.tolist() == [*map(len, lists)]
        assert edges.tolist() == functools.reduce(operator.iadd, lists, [])
