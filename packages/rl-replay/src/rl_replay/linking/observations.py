"""Observations of rows about to be written: contradictions of neighbours, matches across calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import compare_neighbours, keys
from rl_replay.data.bits import differing_bits, same_bits, same_words, words
from rl_replay.linking.markers import Extent, MarkerColumns, MarkerKeys
from rl_slabs.internals import Leaves, ValidatedLeaves, bits_of, carrier
from rl_tensordict import NestedKey, build, nest
from rl_tensordict.arguments import stack_level
from rl_tensordict.types import KeyPath

CURES = (
    "as where the rows of several environments are laid along the batch: use a storage with ndim=2 "
    "and batches [B, T], store ids and steps under ('collector', 'traj_ids') and ('collector', "
    "'traj_step'), or name the dimension that is time, names=['time']. Keep rows that a vector has "
    "only reset, with ('collector', 'mask') False: a call with fewer rows cuts all trajectories."
)
"""What to do where neighbours contradict each other."""
GAP_CURES = (
    "as where rows that a vector has only reset are dropped. Store ids and steps under "
    "('collector', 'traj_ids') and ('collector', 'traj_step'); or let no such row arise, "
    "autoreset_mode=AutoresetMode.SAME_STEP of a Gymnasium vector; or keep them, with "
    "('collector', 'mask') False."
)
"""What to do where calls that hold one step of each environment differ in their number of rows."""

_ENOUGH_PAIRS = 8  # fewer say little
_MISSING: KeyPath = keys.NEXT_MISSING


class Gap(NamedTuple):
    """Two calls of one row per environment, of which the later has another number of rows."""

    before: int  # Rows of the earlier call
    after: int  # Rows of the later call
    cut: int  # Rows of the earlier call that were to be continued


class Contradictions(NamedTuple):
    """How many neighbours of one call were compared, and how many of them contradict."""

    compared: int = 0  # Pairs that no marker cuts
    cut: int = 0  # Those whose observations contradict that one continues the other
    leaves: tuple[NestedKey, ...] = ()  # The observations
    gap: Gap | None = None  # Set where the call before had another number of rows
    # Whether all observations of the other pairs are equal, bit for bit
    proved: bool = False


class Comparisons:
    """The comparisons of all calls of this process; warns once where most contradict."""

    def __init__(self) -> None:
        self.compared = self.cut = 0
        self.leaves: dict[NestedKey, None] = {}
        self.gaps = self.cut_by_gaps = 0
        self._warned = self._warned_of_gap = False

    def add(self, found: Contradictions) -> None:
        """Adds the counts of one call, and warns where most pairs contradict."""
        self.compared += found.compared
        self.cut += found.cut
        self.leaves |= dict.fromkeys(found.leaves)
        if found.gap is not None:
            self._add_gap(found.gap)
        if self._warned or not self._is_rule:
            return
        self._warned = True
        warnings.warn(f"{self}, {CURES}", stacklevel=stack_level())

    @property
    def _is_rule(self) -> bool:
        """Whether most neighbours contradict, of enough."""
        return self.compared >= _ENOUGH_PAIRS and 2 * self.cut > self.compared

    def _add_gap(self, gap: Gap) -> None:
        self.gaps += 1
        self.cut_by_gaps += gap.cut
        if not self._warned_of_gap and self._is_rule:
            self._warned_of_gap = True
            warnings.warn(
                f"a call of {gap.after} rows follows one of {gap.before} rows without ids, which "
                f"cuts {gap.cut} trajectories that go on: a row continues the row at its place in "
                f"the call before, {GAP_CURES}",
                stacklevel=stack_level(),
            )

    def explain_gaps(self) -> str:
        """What gaps have cut, and what to do."""
        return (
            f"{self.cut_by_gaps} trajectories without ids were cut by {self.gaps} calls that have "
            f"another number of rows than the call before, {GAP_CURES}"
        )

    def __str__(self) -> str:
        return (
            f"{self.cut} of {self.compared} neighbours inside one extend are not joined, because "
            f"{list(map(str, self.leaves))} of the one is not what the other says comes next"
        )


class Last(NamedTuple):
    """The last row of a run of rows without ids or steps."""

    ids: tuple[int, ...]  # Its ids
    step: int | None  # Its step; None without one
    waits: bool  # Whether a row may continue it
    following: list[bytes]  # Its next observations, bit for bit

    def precedes(self, ids: tuple[int, ...], step: int | None) -> bool:
        """Whether ids and step allow a row to be the successor."""
        return ids == self.ids and (step is None or step - 1 == self.step)


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one call, one per environment; the next call's rows may be their successors."""

    marks: MarkerColumns  # Their markers, copied
    waits: NDArray[np.bool_]  # bool [n], rows without a successor so far
    following: Sequence[NDArray[Any]]  # Their next observations, bit for bit, [n, words] each
    capacity: int  # Rows of the ring

    @classmethod
    def of(
        cls,
        marks: MarkerColumns,
        back: NDArray[np.int32],
        rows: Iterable[NDArray[Any]],
        capacity: int,
    ) -> Self:
        """Copies what the next call is compared with."""
        waits = marks.before_others()
        waits[:-1] &= back[1:] != 1
        if marks.near is not None:
            waits &= marks.near
        return cls(marks.copy(), waits, [words(row).copy() for row in rows], capacity)

    def last(self) -> Last:
        """The last row alone, for a next call with another number of rows."""
        name = self.marks.name(-1)
        return Last(*name, bool(self.waits[-1]), [rows[-1].tobytes() for rows in self.following])

    def gap(self, count: int) -> Gap | None:
        """What a next call of so many rows cuts; None if it is as long."""
        cut = 0 if count == len(self.waits) else int(np.count_nonzero(self.waits))
        return Gap(len(self.waits), count, cut) if cut else None

    def continued_by(self, marks: MarkerColumns, rows: Iterable[NDArray[Any]]) -> NDArray[np.bool_]:
        """Which rows of the next call continue the rows at the same index, bool `[n]`."""
        found = self.waits & marks.after_others()
        # rows that the next call overwrites are continued by none
        found[: max(0, 2 * len(found) - self.capacity)] = False
        for mine, others in zip(self.marks.ids, marks.ids, strict=True):
            found &= mine == others
        if self.marks.step is not None and marks.step is not None:
            found &= self.marks.step + 1 == marks.step
        for before, row in zip(self.following, rows, strict=True):
            if not found.any():
                break
            found &= same_words(before, words(row))
        return found


def last_rows(lasts: Sequence[Last] | Side) -> Sequence[Last]:
    """The last row of each run."""
    return [lasts.last()] if isinstance(lasts, Side) else lasts


def observed(leaves: Leaves | ValidatedLeaves, known: MarkerKeys, which: int) -> list[NDArray[Any]]:
    """All observations of rows (`which` 0) or all next observations (1), as bits."""
    pairs = zip(known.observations, known.observed, strict=True)
    return [rows_of(leaves, key[which], path[which], slice(None)) for key, path in pairs]


def match_last_rows(
    former: Sequence[Last] | Side,
    known: MarkerKeys,
    leaves: Leaves | ValidatedLeaves,
    marks: MarkerColumns,
    back: NDArray[np.int32],
    stride: int,
) -> None:
    """Completes `back` for rows that continue rows of the previous call, bit for bit."""
    count, lasts = len(back), last_rows(former)
    if isinstance(former, Side) and stride == 1 and len(former.waits) == count:
        continued_by = former.continued_by(marks, observed(leaves, known, 0)) & (back == 0)
        back[continued_by] = count
        if continued_by[-1]:
            return  # the last row is continued, and by no second one
    if not len(lasts) == stride <= count:
        return
    heads: list[NDArray[Any]] = []
    for row, before in enumerate(lasts):
        begins = not before.waits or (marks.init is not None and marks.init[row])
        if begins or back[row] or not before.precedes(*marks.name(row)):
            continue
        heads = heads or observed(leaves, known, 0)
        if [bits[row].tobytes() for bits in heads] == before.following:
            back[row] = stride


def rows_of(
    leaves: Leaves | ValidatedLeaves, key: NestedKey, path: KeyPath, rows: slice
) -> NDArray[Any]:
    """Some rows of a leaf as numpy bits."""
    if isinstance(leaves, ValidatedLeaves):
        return leaves[key][rows]
    leaf = leaves[path]
    if leaf.is_cpu:
        return bits_of(leaf, carrier(leaf.dtype))[rows]
    return bits_of(leaf[rows], carrier(leaf.dtype))


def lacks(leaves: Leaves | ValidatedLeaves, pairs: Iterable[tuple[KeyPath, KeyPath]]) -> bool:
    """Whether an observation or a next observation is absent."""
    if isinstance(leaves, ValidatedLeaves):
        return False
    return any(one not in leaves or two not in leaves for one, two in pairs)


def contradictions(
    leaves: Leaves | ValidatedLeaves, known: MarkerKeys, extent: Extent, joined: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_] | None, Contradictions]:
    """Which neighbours that no marker cuts have contradicting observations, and the counts."""
    pairs = [
        (both, paths)
        for both, paths in zip(known.observations, known.observed, strict=True)
        if isinstance(leaves, ValidatedLeaves) or (paths[0] in leaves and paths[1] in leaves)
    ]
    compared = int(np.count_nonzero(joined))
    if not pairs or not compared:
        return None, Contradictions()
    if _on_host(leaves, pairs):
        differs = [_differs(leaves, *pair, extent.stride, joined) for pair in pairs]
        whole = len(pairs) == len(known.observations)
        if not any(differ.any() for differ in differs):
            return None, Contradictions(compared, proved=whole)
        near = known.far is None and _MISSING not in leaves
        if near and all(np.array_equal(differ, differs[0]) for differ in differs[1:]):
            # no observation proves what another one contradicts: nothing more to weigh
            count = int(np.count_nonzero(differs[0]))
            contradicting = tuple(both[0] for both, _ in pairs)
            return differs[0], Contradictions(compared, count, contradicting, proved=whole)
    paths = {path for _, both in pairs for path in both} | {path for _, path in known.paths}
    found = compare_neighbours(*_laid_out(leaves, known, paths, extent))
    if found is None:
        return None, Contradictions()
    wrong, asked = (
        flags.reshape(-1).cpu().numpy()[: len(joined)] & joined
        for flags in (found.contradicts, found.compared)
    )
    count = int(np.count_nonzero(wrong))
    counts = Contradictions(int(np.count_nonzero(asked | wrong)), count, found.leaves)
    if known.far is not None:
        asked &= _reach_inside(leaves, known, extent)
        if np.count_nonzero(asked & ~wrong) <= count:
            # they reach beyond the call: nothing here tells that neighbours follow each other
            wrong |= joined & ~asked & ~_reach_the_same(leaves, known, extent.stride)
    return (wrong if wrong.any() else None), counts


def _reach_inside(
    leaves: Leaves | ValidatedLeaves, known: MarkerKeys, extent: Extent
) -> NDArray[np.bool_]:
    """N-step rows whose next observation is that of a row of the call, bool `[n - stride]`."""
    rows = np.arange(extent.count - extent.stride)
    steps = _steps(leaves, known, slice(0, len(rows)))
    steps = np.minimum(steps, extent.length)  # corrupt ones near 2**63 would wrap around
    inside: NDArray[np.bool_] = (rows // extent.stride) % extent.length + steps < extent.length
    return inside


def _reach_the_same(
    leaves: Leaves | ValidatedLeaves, known: MarkerKeys, stride: int
) -> NDArray[np.bool_]:
    """Pairs of n-step rows of which the later reaches one step less, to the same observation."""
    earlier, later = slice(0, -stride), slice(stride, None)
    same: NDArray[np.bool_] = _steps(leaves, known, earlier) == _steps(leaves, known, later) + 1
    for (_, key), (_, after) in zip(known.observations, known.observed, strict=True):
        same &= same_bits(*(rows_of(leaves, key, after, rows) for rows in (earlier, later)))
    return same


def _steps(leaves: Leaves | ValidatedLeaves, known: MarkerKeys, rows: slice) -> NDArray[Any]:
    """How far the next observations of n-step rows are away, `[n]`."""
    assert known.far is not None
    return rows_of(leaves, known.far, dict(known.paths)[known.far], rows).reshape(-1)


def _on_host(
    leaves: Leaves | ValidatedLeaves, pairs: Iterable[tuple[Any, tuple[KeyPath, KeyPath]]]
) -> bool:
    if isinstance(leaves, ValidatedLeaves):
        return True
    return all(leaves[path].is_cpu for _, paths in pairs for path in paths)


def _differs(
    leaves: Leaves | ValidatedLeaves,
    both: tuple[NestedKey, NestedKey],
    paths: tuple[KeyPath, KeyPath],
    stride: int,
    joined: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which joined pairs differ in one observation, bool `[n - stride]`."""
    later = rows_of(leaves, both[0], paths[0], slice(stride, None))
    after = rows_of(leaves, both[1], paths[1], slice(0, -stride))
    found = differing_bits(later, after)
    return np.logical_and(found, joined, out=found)


def _laid_out(
    leaves: Leaves | ValidatedLeaves, known: MarkerKeys, paths: set[KeyPath], extent: Extent
) -> tuple[Any, int]:
    """Some leaves reshaped to `[time, others]` or `[others, time]`, and the dimension of time."""
    if isinstance(leaves, ValidatedLeaves):
        named = {path: key for key, path in known.paths}
        for both, found in zip(known.observations, known.observed, strict=True):
            named |= dict(zip(found, both, strict=True))
        columns = {path: torch.from_numpy(leaves[named[path]]) for path in paths}
        if _MISSING in leaves:
            columns[_MISSING] = torch.from_numpy(leaves[_MISSING])
    else:
        columns = {path: leaves[path].detach() for path in {*paths, _MISSING} if path in leaves}
    others = extent.count // extent.length
    shape, dim = ((extent.length, others), 0) if extent.stride > 1 else ((others, extent.length), 1)
    laid = {path: leaf.reshape(*shape, *leaf.shape[1:]) for path, leaf in columns.items()}
    return build(nest(laid), torch.Size(shape)), dim
