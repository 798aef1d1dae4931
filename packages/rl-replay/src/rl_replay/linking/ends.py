"""Ended rows whose next observation is what the row after them shows: it is of another episode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_replay.data.bits import same_bits
from rl_replay.linking.markers import Extent, MarkerColumns, MarkerKeys
from rl_replay.linking.observations import lacks, observed
from rl_slabs.internals import Leaves, ValidatedLeaves
from rl_tensordict import NestedKey

CURES = (
    "Either what a reset returned was stored there: store the observation that step() returned, or "
    "final_obs of a vector that resets in the same step. Or rows in which a vector only reset were "
    "stored as steps: keep them with ('collector', 'mask') False, or take "
    "autoreset_mode=AutoresetMode.SAME_STEP. An environment that itself goes back to its first "
    "observation is right."
)
"""What to do where next observations of ended rows are those of the row after."""

_ENOUGH_ENDS = 4  # fewer say little


class Ends(NamedTuple):
    """How many ended rows were compared with the row after them, and how many show it already."""

    compared: int = 0
    repeated: int = 0

    def plus(self, other: Ends) -> Ends:
        """The counts of both."""
        return Ends(self.compared + other.compared, self.repeated + other.repeated)


class EndComparisons:
    """The comparisons of all calls of this process; warns once where most rows repeat."""

    def __init__(self) -> None:
        self.found = Ends()
        self._warned = False

    def add(self, found: Ends) -> None:
        """Adds the counts of one call, and warns where that is the rule."""
        self.found = self.found.plus(found)
        if not self._warned and self.is_rule:
            self._warned = True
            warnings.warn(f"{self}. {CURES}", stacklevel=5)

    @property
    def is_rule(self) -> bool:
        """Whether most of enough ended rows repeat."""
        compared, repeated = self.found
        return compared >= _ENOUGH_ENDS and 2 * repeated > compared

    def __str__(self) -> str:
        return (
            f"{self.found.repeated} of {self.found.compared} rows that end a trajectory show under "
            "'next' what the row after them shows, which belongs to another trajectory"
        )


class LastEnds(NamedTuple):
    """The ended rows among the last ones of a call, which rows of the next call come after."""

    runs: int  # Rows that the next call begins with, one after each of the last ones
    following: Mapping[int, Sequence[bytes]]  # Next observations, bit for bit, by the place in them

    @classmethod
    def of_row(cls, get: Callable[[NestedKey], NDArray[Any]], known: MarkerKeys) -> LastEnds:
        """A single ended row."""
        pairs = known.observations
        if known.far is not None or not _moved([(get(a), get(b)) for a, b in pairs]):
            return NO_ENDS
        return cls(1, {0: [get(after).tobytes() for _, after in pairs]})

    def compare_row(self, get: Callable[[NestedKey], NDArray[Any]], known: MarkerKeys) -> Ends:
        """Compares the row that comes after."""
        if self.runs != 1 or not self.following:
            return Ends()
        rows = [get(key).tobytes() for key, _ in known.observations]
        return Ends(1, int(rows == list(self.following[0])))


NO_ENDS = LastEnds(0, {})


def compare_ends(
    leaves: Leaves | ValidatedLeaves,
    known: MarkerKeys,
    marks: MarkerColumns,
    extent: Extent,
    former: LastEnds,
    *,
    side_by_side: bool,
) -> tuple[Ends, LastEnds]:
    """Compares the ended rows of a call, and of the one before, with the rows after them."""
    if known.far is not None or not marks.ends or lacks(leaves, known.observed):
        return Ends(), NO_ENDS
    ended, real = np.logical_or.reduce(marks.ends), marks.real
    if real is not None:
        ended = ended & real
    if not former.following and not ended.any():
        return Ends(), NO_ENDS
    # of a call that holds a step of each environment, every row is the last one of its run
    runs = extent.count if side_by_side else extent.stride
    now, after = observed(leaves, known, 0), observed(leaves, known, 1)
    found = _across(former, now, real, runs)
    if runs < extent.count:
        found = found.plus(_inside(now, after, ended, real, extent))
    first = extent.count - runs
    places = np.flatnonzero(ended[first:])
    following = {
        int(place): [rows[first + place].tobytes() for rows in after]
        for place in places
        if _moved([(a[first + place], b[first + place]) for a, b in zip(now, after, strict=True)])
    }
    return found, LastEnds(runs, following)


def _across(
    former: LastEnds, now: list[NDArray[Any]], real: NDArray[np.bool_] | None, runs: int
) -> Ends:
    """Ended rows of the call before."""
    if former.runs != runs:
        return Ends()
    places = [one for one in former.following if real is None or real[one]]
    same = [[rows[one].tobytes() for rows in now] == former.following[one] for one in places]
    return Ends(len(same), sum(same))


def _inside(
    now: list[NDArray[Any]],
    after: list[NDArray[Any]],
    ended: NDArray[np.bool_],
    real: NDArray[np.bool_] | None,
    extent: Extent,
) -> Ends:
    """Ended rows whose next row is in the same call."""
    stride, inside = extent.stride, extent.inside()
    pairs = ended[:-stride] if inside is None else ended[:-stride] & inside
    rows = np.flatnonzero(pairs if real is None else pairs & real[stride:])
    if not len(rows):
        return Ends()
    moved, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for seen, following in zip(now, after, strict=True):
        last = following[rows]
        moved |= ~same_bits(seen[rows], last)
        same &= same_bits(seen[rows + stride], last)
    return Ends(int(moved.sum()), int((same & moved).sum()))


def _moved(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> bool:
    """Whether a next observation differs from the observation; one that does not says nothing."""
    return any(one.tobytes() != other.tobytes() for one, other in pairs)
