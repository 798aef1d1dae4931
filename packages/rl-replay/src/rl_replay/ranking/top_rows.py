"""Which of a stream of rows are the best: the highest ranks, of equal ones the older."""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_replay.ranking.ranks import RankArray
from rl_tensordict.types import Ints


class RankedRows(NamedTuple):
    """What becomes of some new rows."""

    kept: Ints  # Those that stay, in the order in which they came, int64 [k]
    places: Ints  # Where each is stored, int64 [k]; free places come first
    appended: int  # How many take free places


class TopRows:
    """The ranks of the stored rows, by position, and the worst of them in order."""

    # A row is better than another if its rank is higher, or equal and it came before. Ranks are in
    # one array; another one holds the positions of the worst rows, the worst first, about the
    # square root of all. So to replace a row costs a search there, and all rows are looked at only
    # when it is used up.

    def __init__(self, capacity: int) -> None:
        self.ranks: RankArray = np.zeros(capacity)
        self.ages = np.zeros(capacity, np.int64)  # when each came, counted in rows
        self.count = self.came = 0  # rows that are stored, and that ever came
        self._worst = np.zeros(0, np.int64)

    def plan(self, ranks: RankArray) -> RankedRows:
        """Which of some new rows stay, and where; nothing changes."""
        free = len(self.ranks) - self.count
        if len(ranks) <= free:
            rows = np.arange(len(ranks))
            return RankedRows(rows, self.count + rows, len(rows))
        if free:
            return self._plan_filling(ranks, free)
        better = np.flatnonzero(ranks > self.ranks[self._worst_rows(1)[0]])
        best = better[np.argsort(-ranks[better], kind="stable")]
        worst = self._worst_rows(len(best))[: len(best)]
        # both are in order, so that the rows which stay come first
        stay = int(np.count_nonzero(ranks[best[: len(worst)]] > self.ranks[worst]))
        return RankedRows(np.sort(best[:stay]), worst[:stay], 0)

    def _plan_filling(self, ranks: RankArray, free: int) -> RankedRows:
        """The plan of a call that fills the storage, and brings more rows than that."""
        count = self.count
        every = np.concatenate((self.ranks[:count], ranks))
        best = np.argsort(-every, kind="stable")[: len(self.ranks)]
        kept = np.sort(best[best >= count]) - count
        stays = np.zeros(count, np.bool_)
        stays[best[best < count]] = True
        places = np.concatenate((np.arange(count, count + free), np.flatnonzero(~stays)))
        return RankedRows(kept, places[: len(kept)], min(free, len(kept)))

    def enter(self, entries: RankedRows, ranks: RankArray) -> None:
        """Takes new rows in, as planned."""
        kept, places = entries.kept, entries.places
        boundary = self.ranks[self._worst[-1:]]
        self.ranks[places] = ranks[kept]
        self.ages[places] = self.came + kept
        self.count += entries.appended
        self.came += len(ranks)
        # what was replaced were the worst ones
        left = self._worst[len(places) :]
        self._worst = left if len(left) and not entries.appended else left[:0]
        if len(self._worst):
            self._insert(places[self.ranks[places] <= boundary])

    def _insert(self, places: Ints) -> None:
        """Puts new rows among the worst; of equal ones the newest is the worst."""
        order = places[np.lexsort((-self.ages[places], self.ranks[places]))]
        before = np.searchsorted(self.ranks[self._worst], self.ranks[order], side="left")
        self._worst = np.insert(self._worst, before, order)

    def _worst_rows(self, wanted: int) -> Ints:
        """The positions of the worst rows, the worst first: as many as are wanted, or all."""
        if len(self._worst) < min(wanted, self.count):
            count = min(self.count, max(wanted, 4 * isqrt(self.count)))
            ranks = self.ranks[: self.count]
            limit = np.partition(ranks, count - 1)[count - 1]
            some, equal = np.flatnonzero(ranks < limit), np.flatnonzero(ranks == limit)
            newest = np.argpartition(-self.ages[equal], count - len(some) - 1)
            some = np.concatenate((some, equal[newest[: count - len(some)]]))
            self._worst = some[np.lexsort((-self.ages[some], ranks[some]))]
        return self._worst

    def state(self) -> dict[str, Any]:
        """The ranks and ages of the stored rows."""
        return {
            "ranks": torch.from_numpy(self.ranks[: self.count].copy()),
            "ages": torch.from_numpy(self.ages[: self.count].copy()),
            "came": self.came,
        }

    def restore(self, ranks: RankArray, ages: Ints, came: int) -> None:
        """Knows the rows of another buffer, in the order of their positions."""
        self.count, self.came = len(ranks), came
        self.ranks[: self.count], self.ages[: self.count] = ranks, ages
        self._worst = self._worst[:0]
