"""The example of a tree search: it never loses a game, whoever it plays against."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch

from test_examples import load


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_search_never_loses_whatever_the_opening_and_the_replies(seed):
    example = load("mcts_tictactoe")
    for first in (True, False):
        counts = example.results(example.Options(seed=seed), first=first)
        assert counts["lost"] == 0
        assert counts["won"] > 50  # opponents include those that play badly
        assert counts["drawn"] > 0


def test_a_game_ends_with_a_line_or_without_a_free_place():
    example = load("mcts_tictactoe")
    boards = torch.tensor(
        [[1, 1, 0, -1, -1, 0, 0, 0, 0], [1, -1, 1, 1, -1, -1, -1, 1, 0], [0] * 9], dtype=torch.int8
    )
    after, won, over = example.play(boards, torch.tensor([2, 8, 4]))
    assert won.tolist() == [True, False, False]
    assert over.tolist() == [True, True, False]
    assert after[2].tolist() == [0, 0, 0, 0, -1, 0, 0, 0, 0]
    replies, ends = example.replies(torch.tensor([[-1, -1, 0, 1, 1, 0, 0, 0, 0]]))
    assert len(replies) == 5
    assert ends.sum(0).tolist() == [1, 1]


def test_a_win_at_hand_is_taken():
    example = load("mcts_tictactoe")
    boards = torch.tensor([[1, 1, 0, -1, -1, 0, 0, 0, 0]], dtype=torch.int8)
    assert example.best_moves(boards, example.Options(50)).tolist() == [2]
