# /// script
# requires-python = ">=3.11"
# dependencies = ["rl-trees[compiled]", "torch"]
# ///
"""Tic-tac-toe by Monte-Carlo tree search, in all positions of a move at once.

    python examples/mcts_tictactoe.py
    python examples/mcts_tictactoe.py --simulations 50      # too few: it loses some games

The search plays against every possible opponent: all replies to each of its moves are followed,
with the search as first and as second player. It prints how many games it won, drew and lost.
Leaves are valued by random games. Boards are int8 [B, 9]: 1 for the player to move, -1 for the
other one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_trees import UCB1, MCTSTrees

LINES = torch.tensor(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
)
PLAYOUTS = 4  # random games for each leaf


@dataclass(frozen=True)
class Options:
    """What a search spends."""

    simulations: int = 800
    seed: int = 0


def play(boards: Tensor, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moves in boards `[B, 9]`.

    Returns:
        The boards as the other player sees them, whether the move has won, and whether the game
        is over.
    """
    marked = boards.scatter(1, moves[:, None], 1)
    won = (marked[:, LINES].sum(-1) == 3).any(1)
    return -marked, won, won | (marked != 0).all(1)


def playout(boards: Tensor, generator: torch.Generator) -> Tensor:
    """Mean results `[B]` of random games for the player to move, between -1 and 1."""
    boards = boards.repeat_interleave(PLAYOUTS, 0)
    result, over = torch.zeros(len(boards)), torch.zeros(len(boards), dtype=torch.bool)
    sign = 1.0
    while not over.all():
        chance = torch.rand(boards.shape, generator=generator).masked_fill(boards != 0, -1)
        boards, won, ended = play(boards, chance.argmax(1))
        result = torch.where(won & ~over, sign, result)
        over, sign = over | ended, -sign
        boards = torch.where(over[:, None], 0, boards)  # any board will do, it is not read
    return result.reshape(-1, PLAYOUTS).mean(1)


def best_moves(boards: Tensor, options: Options) -> Tensor:
    """The moves `[B]` that a search in each position finds."""
    generator = torch.Generator().manual_seed(options.seed)
    count, rows = len(boards), torch.arange(len(boards))
    trees = MCTSTrees(count, options.simulations + 1, 9, UCB1())
    states = torch.zeros(count, options.simulations + 1, 9, dtype=boards.dtype)
    trees.reset(torch.zeros(count, 9), legal=boards == 0, generator=generator)
    states[:, 0] = boards
    for _ in range(options.simulations):
        leaves = trees.select()
        after, won, over = play(states[rows, leaves.node], leaves.action)
        value = torch.zeros(count)
        value[~over] = playout(after[~over], generator)
        nodes = trees.expand(
            leaves,
            won.float(),
            torch.zeros(count, 9),
            value,
            discount=-1.0,  # the other player moves next
            done=over,
            legal=after == 0,
        )
        states[rows, nodes] = after
        trees.backup(leaves)
    return trees.best_actions()


def replies(boards: Tensor) -> tuple[Tensor, Tensor]:
    """Every reply to every board, and whether it wins: boards `[M, 9]`, each of them once."""
    rows, moves = (boards == 0).nonzero(as_tuple=True)
    after, won, over = play(boards[rows], moves)
    both = torch.cat([after, won[:, None], over[:, None]], 1).unique(dim=0)
    return both[:, :9], both[:, 9:].bool()


def results(options: Options, *, first: bool) -> dict[str, int]:
    """Ends of games against all opponents, positions counted once: won, drawn and lost."""
    counts = {"won": 0, "drawn": 0, "lost": 0}
    boards = torch.zeros(1, 9, dtype=torch.int8)
    if not first:
        boards, _ = replies(boards)
    while len(boards):
        boards, won, over = play(boards, best_moves(boards, options))
        counts["won"] += int(won.sum())
        counts["drawn"] += int((over & ~won).sum())
        if (~over).any():
            boards, ends = replies(boards[~over])
            counts["lost"] += int(ends[:, 0].sum())
            counts["drawn"] += int((ends[:, 1] & ~ends[:, 0]).sum())
            boards = boards[~ends[:, 1]]
        else:
            boards = boards[:0]
    return counts


def main() -> None:
    """Play both sides and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulations", type=int, default=Options.simulations)
    parser.add_argument("--seed", type=int, default=Options.seed)
    given = parser.parse_args()
    for first in (True, False):
        counts = results(Options(given.simulations, given.seed), first=first)
        side = "first" if first else "second"
        print(f"as the {side} player, against every opponent: {counts}")


if __name__ == "__main__":
    main()
