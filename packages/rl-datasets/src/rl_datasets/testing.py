"""Small datasets for tests and examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rl_datasets.episodes import Episode, EpisodeSource
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath


def toy_episodes(
    lengths: Sequence[int], *, has_last: bool = True, ends: str = "terminated", seed: int = 0
) -> list[Episode]:
    """Episodes of random numbers.

    Args:
        lengths: How many steps each has.
        has_last: Whether the observation after the last step is there.
        ends: How they end: "terminated", "truncated" or "cut".
        seed: Of the random numbers.

    Example:
        >>> [len(episode) for episode in toy_episodes([3, 2])]
        [3, 2]
    """
    rng = np.random.default_rng(seed)
    found = []
    for number, steps in enumerate(lengths):
        last = np.arange(steps) == steps - 1
        columns: dict[KeyPath, Array] = {
            ("action",): rng.normal(size=(steps, 2)).astype(np.float32),
            NEXT_REWARD: rng.normal(size=steps),
            NEXT_TERMINATED: last & (ends == "terminated"),
            NEXT_TRUNCATED: last & (ends == "truncated"),
        }
        seen: dict[KeyPath, Array] = {
            ("observation",): rng.normal(size=(steps + has_last, 3)).astype(np.float32),
            ("info", "count"): rng.integers(0, 9, steps + has_last),
        }
        found.append(Episode(seen, columns, f"toy, episode {number}", number))
    return found


class ListSource(EpisodeSource):
    """Episodes that are in memory already.

    Args:
        given: The episodes.

    Example:
        >>> ListSource(toy_episodes([3, 2])).steps
        5
    """

    format = "memory"

    def __init__(self, given: Sequence[Episode]) -> None:
        super().__init__()
        self.given = list(given)

    @property
    def steps(self) -> int:
        """How many steps all episodes have."""
        return sum(len(episode) for episode in self.given)

    @property
    def files(self) -> Sequence[Path]:
        """No file."""
        return []

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes in order."""
        yield from self.given[first:]
