"""Checks of ended rows, as they are written: their next observations, and their flags."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_replay.data.bits import differing_words, words
from rl_replay.linking.markers import Extent, MarkerColumns, MarkerKeys, ReadColumn, any_set
from rl_replay.linking.observations import lacks, observed
from rl_slabs.internals import Leaves, ValidatedLeaves
from rl_tensordict.arguments import stack_level

Seen = tuple[list[NDArray[Any]], list[NDArray[Any]]]
"""Observations and next observations of rows, as bits."""

CURES = (
    "Either what a reset returned was stored there: store the observation that step() returned, or "
    "final_obs of a vector that resets in the same step. Or rows in which a vector only reset were "
    "stored as steps: keep them with ('collector', 'mask') False, or take "
    "autoreset_mode=AutoresetMode.SAME_STEP. An environment that itself goes back to its first "
    "observation is right."
)
"""What to do where next observations of ended rows are those of the row after."""
FLAG_CURES = (
    "done is terminated or truncated, always: was one of them inverted, or left False? Estimators "
    "read terminated, and samplers cut at any of them. rl_layout.check_layout names the rows."
)
"""What to do where the flags of a row contradict each other."""

_ENOUGH_ENDS = 4  # fewer say little


class EndChecks:
    """The checks of all writes of this process; warns once of each fault."""

    def __init__(self) -> None:
        # ended rows with a row after them; how many of these show its observation
        self.compared = self.repeated = 0
        self.contradictory = 0  # rows whose flags contradict each other
        self._last = NO_ENDS
        self._warned_of_rows = self._warned_of_flags = False

    def see(
        self,
        leaves: Leaves | ValidatedLeaves,
        marks: MarkerColumns,
        known: MarkerKeys,
        extent: Extent,
        *,
        side_by_side: bool,
    ) -> None:
        """Looks at rows that were written, of which any may be ended."""
        if not marks.ends:
            return
        wrong = _contradictory(known, marks)
        # of bools numpy counts in a tenth of the time of `any`
        contradictory = 0 if wrong is None else int(np.count_nonzero(wrong))
        if contradictory:
            self._add_flags(contradictory)
        former, self._last = self._last, NO_ENDS
        if not known.compares or known.far is not None or lacks(leaves, known.observed):
            return
        ended = marks.ended()
        assert ended is not None  # there are flags
        if marks.real is not None:
            ended = ended & marks.real
        if contradictory and wrong is not None:
            ended = ended & ~wrong
        count = int(np.count_nonzero(ended))
        if not former.following and not count:
            return
        # of a call that holds a step of each environment every row is the last of its run
        runs = extent.count if side_by_side else extent.stride
        at_end = int(np.count_nonzero(ended[len(ended) - runs :]))
        seen = observed(leaves, known, 0), observed(leaves, known, 1)
        across = _across(former, seen[0], marks.real, runs) if former.following else (0, 0)
        inside = _inside(seen, ended, marks.real, extent) if count > at_end else (0, 0)
        self._add_rows(across[0] + inside[0], across[1] + inside[1])
        if at_end:
            self._last = LastEnds.of_rows(seen, ended, runs)

    @property
    def follows_end(self) -> bool:
        """Whether the next row comes after an ended one."""
        return self._last is not NO_ENDS

    def see_row(self, get: ReadColumn, known: MarkerKeys) -> None:
        """`see` of one row, whose leaves `get` returns by key."""
        former, self._last = self._last, NO_ENDS
        if known.mask is not None and not any_set(get(known.mask)):
            return
        flags = [any_set(get(key)) for key in known.ends]
        if not known.compares or known.far is not None:
            former = NO_ENDS
        if former.runs == 1 and former.following:
            rows = [get(key).tobytes() for key, _ in known.observations]
            self._add_rows(1, int(rows == list(former.following[0])))
        if True not in flags:
            return
        if known.far is not None:
            return
        done, *kinds = _by_kind(known, flags)
        if done is not None and _disagree(done, *kinds):
            self._add_flags(1)
        elif known.compares:
            self._last = LastEnds.of_row(get, known)

    def lines(self) -> list[str]:
        """What was found, and what to do."""
        found = [f"{self._said_of_rows()}. {CURES}"] if self._is_rule else []
        return [*found, f"{self._said_of_flags()}. {FLAG_CURES}"] if self.contradictory else found

    @property
    def _is_rule(self) -> bool:
        """Whether most of enough ended rows repeat."""
        return self.compared >= _ENOUGH_ENDS and 2 * self.repeated > self.compared

    def _add_rows(self, compared: int, repeated: int) -> None:
        self.compared += compared
        self.repeated += repeated
        if not self._warned_of_rows and self._is_rule:
            self._warned_of_rows = True
            warnings.warn(f"{self._said_of_rows()}. {CURES}", stacklevel=stack_level())

    def _add_flags(self, contradictory: int) -> None:
        self.contradictory += contradictory
        if contradictory and not self._warned_of_flags:
            self._warned_of_flags = True
            warnings.warn(f"{self._said_of_flags()}. {FLAG_CURES}", stacklevel=stack_level())

    def _said_of_rows(self) -> str:
        return (
            f"{self.repeated} of {self.compared} rows that end a trajectory show under 'next' what "
            "the row after them shows, which belongs to another trajectory"
        )

    def _said_of_flags(self) -> str:
        return f"{self.contradictory} rows have done flags under 'next' that contradict each other"


class LastEnds(NamedTuple):
    """The ended rows among the last ones of a call, which rows of the next call come after."""

    runs: int  # Rows that the next call begins with, one after each of the last ones
    following: Mapping[int, Sequence[bytes]]  # Next observations, bit for bit, by the place in them

    @classmethod
    def of_row(cls, get: ReadColumn, known: MarkerKeys) -> LastEnds:
        """A single ended row."""
        now, after = (
            [get(pair[which]).tobytes() for pair in known.observations] for which in (0, 1)
        )
        # one that did not move says nothing
        return NO_ENDS if now == after else cls(1, {0: after})

    @classmethod
    def of_rows(cls, seen: Seen, ended: NDArray[np.bool_], runs: int) -> LastEnds:
        """The ended ones of the last `runs` rows."""
        first = len(ended) - runs
        following: dict[int, Sequence[bytes]] = {}
        for place in ended[first:].nonzero()[0].tolist():
            now, after = ([rows[first + place].tobytes() for rows in side] for side in seen)
            if now != after:
                following[place] = after
        return cls(runs, following) if following else NO_ENDS


NO_ENDS = LastEnds(0, {})


def _across(
    former: LastEnds, now: list[NDArray[Any]], real: NDArray[np.bool_] | None, runs: int
) -> tuple[int, int]:
    """Ended rows of the call before."""
    if former.runs != runs:
        return 0, 0
    places = [one for one in former.following if real is None or real[one]]
    same = [[rows[one].tobytes() for rows in now] == former.following[one] for one in places]
    return len(same), sum(same)


def _inside(
    both: Seen,
    ended: NDArray[np.bool_],
    real: NDArray[np.bool_] | None,
    extent: Extent,
) -> tuple[int, int]:
    """Ended rows whose next row is in the same call."""
    stride, inside = extent.stride, extent.inside()
    pairs = ended[:-stride] if inside is None else ended[:-stride] & inside
    rows = (pairs if real is None else pairs & real[stride:]).nonzero()[0]
    if not len(rows):
        return 0, 0
    moved, apart = np.zeros((2, len(rows)), np.bool_)
    for seen, following in zip(*both, strict=True):
        now, last = words(seen), words(following).take(rows, 0)
        moved |= differing_words(now.take(rows, 0), last)
        apart |= differing_words(now.take(rows + stride, 0), last)
    return int(np.count_nonzero(moved)), int(np.count_nonzero(moved > apart))


def _contradictory(known: MarkerKeys, marks: MarkerColumns) -> NDArray[np.bool_] | None:
    """Real rows whose flags contradict each other, bool `[n]`; None without flags to compare."""
    if len(known.ends) != len(marks.ends):
        return None
    done, *kinds = _by_kind(known, marks.ends)
    wrong: NDArray[np.bool_] | None = None if done is None else _disagree(done, *kinds)
    return wrong if wrong is None or marks.real is None else wrong & marks.real


def _by_kind(known: MarkerKeys, flags: Sequence[Any]) -> list[Any]:
    """Done, terminated and truncated among flags; None for an absent one."""
    return [None if place is None else flags[place] for place in known.kinds]


def _disagree(done: Any, terminated: Any, truncated: Any) -> Any:
    """Where done is not terminated or truncated; of one of these alone, where done lacks it."""
    if terminated is not None and truncated is not None:
        return done != (terminated | truncated)
    kind = truncated if terminated is None else terminated
    return None if kind is None else kind > done
