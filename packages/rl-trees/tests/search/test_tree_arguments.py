"""Arguments of `MCTSTrees` that fit no tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_trees import MCTSTrees


@pytest.mark.parametrize(
    "leaves",
    [3, {}, (), [[0], [0]], ([0, 0], [0]), ([0], [0]), ([0.5, 0.0], [0, 0]), ("ab", "cd")],
)
def test_leaves_that_no_selection_returned_are_named(leaves):
    trees = MCTSTrees(2, 5, 3)
    trees.reset(torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"expected (nodes and actions|numbers)"):
        trees.backup(leaves)


def test_values_that_are_no_numbers_are_named():
    trees = MCTSTrees(2, 5, 3)
    for logits in ("text", {}, [[1.0], [1.0, 2.0]], torch.zeros(2, 3).to_sparse()):
        with pytest.raises(TypeError, match="logits: expected numbers, or a tensor or an array"):
            trees.reset(logits)


def test_what_is_no_rule_is_named():
    with pytest.raises(TypeError, match=r"rule: expected a rule, as PUCT\(\), got 'puct'"):
        MCTSTrees(2, 5, 3, rule="puct")
    with pytest.raises(TypeError, match=r"virtual_loss: expected a number, got None"):
        MCTSTrees(2, 5, 3, virtual_loss=None)


def test_a_tree_without_nodes_left_is_refused_before_anything_is_written(loops):
    trees = MCTSTrees(2, 2, 2)
    trees.reset(torch.zeros(2, 2))
    zeros = torch.zeros(2)
    first = trees.select()
    trees.expand(first, zeros, torch.zeros(2, 2), zeros)
    trees.backup(first)
    second = trees.select()
    before = [column.copy() for column in trees.columns]
    with pytest.raises(RuntimeError, match="tree 0 has 0 of 2 nodes left, and 1 are to be added"):
        trees.expand(second, zeros, torch.zeros(2, 2), zeros)
    for old, new in zip(before, trees.columns, strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": torch.zeros(3)}, r"reward must be \[2\], got \[3\]"),
        ({"reward": [0.0, torch.inf]}, r"reward at \(1,\) is not finite: inf"),
        ({"reward": 0.0}, r"reward must be \[2\], got \[\]"),
        ({"logits": torch.zeros(2, 4)}, r"logits must be \[2, 3\], got \[2, 4\]"),
        ({"value": torch.tensor([0.0, torch.nan])}, r"value at \(1,\) is not finite: nan"),
        ({"logits": torch.full((2, 3), torch.inf)}, r"logits at \(0, 0\) is not finite: inf"),
        ({"discount": torch.zeros(2, 1)}, r"discount must be \[2\], got \[2, 1\]"),
        ({"done": torch.zeros(2)}, r"done must be bool \[2\], got float32 \[2\]"),
        ({"legal": torch.zeros(2, 3, dtype=torch.bool)}, r"node at \(0,\) has no legal action"),
    ],
)
def test_results_that_do_not_fit_are_refused(change, message):
    trees = MCTSTrees(2, 5, 3)
    trees.reset(torch.zeros(2, 3))
    leaves = trees.select()
    results = {"reward": torch.zeros(2), "logits": torch.zeros(2, 3), "value": torch.zeros(2)}
    with pytest.raises(ValueError, match=message):
        trees.expand(leaves, **(results | change))
    assert trees.sizes.tolist() == [1, 1]


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_out_of_range_is_refused_before_anything_is_written(loops, action):
    trees = MCTSTrees(2, 5, 3)
    trees.reset(torch.zeros(2, 3))
    leaves = trees.select()._replace(action=torch.tensor([0, action]))
    before = [column.copy() for column in trees.columns]
    message = rf"action {action} of tree 1 is out of range \[0, 3\)"
    with pytest.raises(ValueError, match=message):
        trees.expand(leaves, torch.zeros(2), torch.zeros(2, 3), torch.zeros(2))
    for old, new in zip(before, trees.columns, strict=True):
        np.testing.assert_array_equal(old, new)


def test_calls_that_do_not_fit_are_refused():
    trees = MCTSTrees(2, 5, 3)
    with pytest.raises(RuntimeError, match="there are no roots: call reset first"):
        trees.select()
    with pytest.raises(ValueError, match=r"node at \(1,\) has no legal action and is not done"):
        trees.reset(torch.zeros(2, 3), legal=torch.tensor([[True] * 3, [False] * 3]))
    trees.reset(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="count: expected at least 1, got 0"):
        trees.select(0)
    leaves = trees.select()
    with pytest.raises(ValueError, match="some leaves have no child yet: call expand"):
        trees.backup(leaves)
    wrong = leaves._replace(action=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"action 3 of tree 1 is out of range \[0, 3\)"):
        trees.backup(wrong)
    with pytest.raises(ValueError, match=r"node 1 of tree 0 is out of range \[0, 1\)"):
        trees.backup(leaves._replace(node=torch.tensor([1, 0])))
    with pytest.raises(ValueError, match="num_nodes: expected at least 1, got 0"):
        MCTSTrees(1, 0, 1)
