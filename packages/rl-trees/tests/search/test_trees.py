from __future__ import annotations

import pytest
import torch

from rl_trees import EXP3, PUCT, UCB1, MCTSTrees


def test_several_selections_of_a_tree_spread(loops):
    trees = MCTSTrees(1, 9, 4, PUCT(c=0.1))
    trees.reset(torch.tensor([[3.0, 2.0, 1.0, 0.0]]))
    assert sorted(trees.select(4).action[0].tolist()) == [0, 1, 2, 3]


def test_equal_selections_add_one_child_and_count_each(loops):
    trees = MCTSTrees(1, 9, 4, PUCT(c=0.1), virtual_loss=0.0)
    trees.reset(torch.tensor([[9.0, 2.0, 1.0, 0.0]]))
    leaves = trees.select(3)
    assert leaves.action.tolist() == [[0, 0, 0]]
    zeros = torch.zeros(1, 3)
    assert trees.expand(leaves, zeros, torch.zeros(1, 3, 4), zeros).tolist() == [[1, 1, 1]]
    trees.backup(leaves)
    assert trees.root_visits.tolist() == [[3, 0, 0, 0]]
    assert not trees.columns.pending.any()


def test_a_done_node_is_visited_again_and_never_left(loops):
    trees = MCTSTrees(1, 3, 2, UCB1(c=0.1))
    trees.reset(torch.zeros(1, 2))
    nothing, ended = torch.tensor([torch.nan]), torch.tensor([True])
    for _ in range(9):
        leaves = trees.select()
        won = (leaves.action == 1).double()
        trees.expand(leaves, won, torch.zeros(1, 2), nothing, done=ended)
        trees.backup(leaves)
    assert trees.root_visits.sum() == 9
    assert trees.sizes.tolist() == [3]
    assert trees.best_actions().tolist() == [1]
    assert trees.root_means.tolist() == [[0.0, 1.0]]


def test_the_discount_of_minus_one_turns_the_return_over(loops):
    trees = MCTSTrees(1, 4, 1)
    trees.reset(torch.zeros(1, 1), torch.tensor([0.25]))
    for value in (0.5, 0.125):
        leaves = trees.select()
        trees.expand(leaves, [0.0], torch.zeros(1, 1), [value], discount=-1.0)
        trees.backup(leaves)
    # the second leaf is below the first: its value is turned over twice
    assert trees.root_means.tolist() == [[(-0.5 + 0.125) / 2]]
    assert trees.root_values.tolist() == [(0.25 - 0.5 + 0.125) / 3]
    assert trees.policy().tolist() == [[1.0]]


def test_a_search_can_begin_anew_in_the_same_memory(loops):
    trees = MCTSTrees(2, 3, 3)
    logits, zeros = torch.zeros(2, 3), torch.zeros(2)
    trees.reset(logits)
    trees.expand(leaves := trees.select(), zeros, logits, zeros)
    trees.backup(leaves)
    trees.expand(leaves := trees.select(), zeros, logits, zeros)
    assert trees.sizes.tolist() == [3, 3]
    deeper = leaves._replace(node=torch.tensor([1, 1]))
    trees.reset(logits)
    assert not trees.root_visits.any()
    assert trees.sizes.tolist() == [1, 1]
    with pytest.raises(ValueError, match="node 1 of tree 0 is out of range"):
        trees.backup(deeper)


def test_exp3_draws_by_its_probabilities(loops):
    trees = MCTSTrees(4_000, 2, 3, EXP3(gamma=0.3))
    trees.reset(torch.zeros(4_000, 3), generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(trees.select().action, minlength=3) / 4_000
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)  # four standard errors
