"""The first episodes of each row of an environment, added up over rollouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_record.evaluation.evaluation import Evaluation


class EpisodeTally:
    """Counts the first `num_episodes` episodes of each of E rows, and nothing after them."""

    # The number is fixed beforehand: were the first episodes of all rows counted that end, short
    # ones would be too many.

    def __init__(self, num_rows: int, num_episodes: int) -> None:
        self.num_episodes = num_episodes
        self.episodes: list[tuple[float, int, int]] = []  # return, length, row
        self.num_ended = np.zeros(num_rows, np.int64)  # [E]
        self.returns = np.zeros(num_rows)  # [E], of the running episodes
        self.lengths = np.zeros(num_rows, np.int64)  # [E]

    @property
    def is_complete(self) -> bool:
        """Whether each row has played its episodes."""
        return bool((self.num_ended >= self.num_episodes).all())

    def add(
        self, rewards: NDArray[np.float64], done: NDArray[np.bool_], real: NDArray[np.bool_]
    ) -> None:
        """Add steps ``[E, T]`` that follow those before; steps that are not real are none."""
        rewards = np.where(real, rewards, 0.0)
        for row in (self.num_ended < self.num_episodes).nonzero()[0].tolist():
            begin = 0
            for end in (done[row] & real[row]).nonzero()[0]:
                self._take(row, rewards[row, begin : end + 1], real[row, begin : end + 1])
                self.episodes.append((float(self.returns[row]), int(self.lengths[row]), row))
                self.returns[row], self.lengths[row] = 0.0, 0
                self.num_ended[row] += 1
                begin = end + 1
                if self.num_ended[row] == self.num_episodes:
                    break
            else:
                self._take(row, rewards[row, begin:], real[row, begin:])

    def result(self) -> Evaluation:
        """What was counted, episode by episode in the order of rows."""
        ordered = sorted(self.episodes, key=lambda episode: episode[2])
        columns = [np.array(column) for column in zip(*ordered, strict=True)] or [np.zeros(0)] * 3
        returns, lengths, rows = columns
        running = int((self.num_ended < self.num_episodes).sum())
        counts = lengths.astype(np.int64), rows.astype(np.int64)
        return Evaluation(returns.astype(np.float64), *counts, running)

    def _take(self, row: int, rewards: NDArray[np.float64], real: NDArray[np.bool_]) -> None:
        self.returns[row] += rewards.sum()
        self.lengths[row] += int(real.sum())
