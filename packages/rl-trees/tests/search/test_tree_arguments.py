"""Arguments of `MCTSTrees` that fit no tree."""

from __future__ import annotations

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
