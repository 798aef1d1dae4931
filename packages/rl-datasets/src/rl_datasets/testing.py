"""Small datasets for tests and examples, and a check for authors of sources."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath


def check_source(make: Callable[[], EpisodeSource]) -> None:
    """Check that a source keeps the promises of sources.

    Its episodes come in the order of their numbers, each with a place of its own, and have the same
    columns; reading again, or from any episode on, gives the same bits, in arrays that nothing
    writes to later; `steps` is an upper bound; a generator that is closed early raises nothing;
    the fingerprint is that of the files, and plain.

    Args:
        make: Makes the source, of the same files each time.

    Raises:
        AssertionError: A promise is broken; the message says which.

    Example:
        >>> check_source(lambda: ListSource(toy_episodes([3, 2])))
    """
    source, kind = make(), type(make()).__name__
    held = list(source.episodes())
    _require(held, kind, "it has an episode")
    copies = [_copied(episode) for episode in source.episodes()]
    _require([*map(_copied, held)] == copies, kind, "reading twice gives the same, in fresh arrays")
    steps = sum(len(episode) for episode in held)
    _require(steps <= source.steps, kind, f"steps, {source.steps}, are no less than the {steps}")
    numbers = [episode.number for episode in held]
    _require(numbers == sorted(set(numbers)), kind, f"numbers rise: {numbers}")
    places = {episode.place for episode in held}
    _require(len(places) == len(held), kind, "each episode has a place of its own")
    for other in held[1:]:
        same = _columns(other) == _columns(held[0])
        _require(same, kind, f"columns of {other.place} are those of {held[0].place}")
    for first in range(len(held) + 1):
        rest = [_copied(episode) for episode in make().episodes(first)]
        _require(rest == copies[first:], kind, f"episodes({first}) passes over {first}")
    begun = iter(make().episodes())
    next(begun)
    del begun
    found = source.fingerprint()
    _require(found == make().fingerprint(), kind, "the fingerprint is that of the files")
    _require(json.loads(json.dumps(found)) == found, kind, "the fingerprint has plain values")
    _require(all(path.exists() for path in source.files), kind, "its files are there")


def _require(kept: object, kind: str, promise: str) -> None:
    if not kept:
        raise AssertionError(f"{kind} breaks a promise of sources: {promise}.")


def _parts(episode: Episode) -> Iterator[tuple[KeyPath, Array]]:
    return itertools.chain(episode.observations.items(), episode.columns.items())


def _copied(episode: Episode) -> tuple[object, ...]:
    """All that an episode is, bit for bit."""
    columns = [(key, one.dtype.str, one.shape, one.tobytes()) for key, one in _parts(episode)]
    return episode.number, episode.place, episode.has_last, sorted(columns)


def _columns(episode: Episode) -> list[tuple[object, ...]]:
    return sorted((key, one.dtype.str, one.shape[1:]) for key, one in _parts(episode))


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


class ListSource(CountedFiles):
    """Episodes that are in memory already.

    Args:
        given: The episodes.

    Example:
        >>> ListSource(toy_episodes([3, 2])).steps
        5
    """

    format = "memory"

    def __init__(self, given: Sequence[Episode]) -> None:
        super().__init__([])
        self.given = list(given)
        self._steps = sum(map(len, self.given))

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes in order."""
        yield from self.given[first:]
