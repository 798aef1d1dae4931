"""Ids and steps for rows that lack them, derived from neighbours and equal observations."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_layout import contradictions, keys
from rl_tensordict.arguments import check_whole
from rl_tensordict.types import Array
from rl_transforms.multi_step.ended_rows import EndedRows, is_padding
from rl_transforms.multi_step.flat_leaves import OWN_ID, OWN_STEP, FlatRows
from rl_transforms.multi_step.observed_bytes import compared_bytes, listed_bytes
from rl_transforms.multi_step.trajectory_order import PRODUCER_SHIFT, cuts_before

_OWN = (OWN_ID, OWN_STEP)
PRODUCER_BITS = 31


class TrajectoryNumbers:
    """Ids that are never used again: 31 bits of a producer's number, and a counter below them."""

    def __init__(self, producer: int | None = None) -> None:
        if producer is not None:
            check_whole("producer", producer, 0)
            if producer >> PRODUCER_BITS:
                msg = f"producer must be below 2**{PRODUCER_BITS}: got {producer}."
                raise ValueError(msg)
        self._given = producer
        self._producer, self._begun, self._process = producer, 0, os.getpid()

    def draw(self, count: int) -> Array:
        """The next ids, int64 ``[count]``."""
        if self._producer is None or (self._given is None and self._process != os.getpid()):
            # a forked copy numbers trajectories of its own
            self._producer, self._begun = secrets.randbits(PRODUCER_BITS), 0
            self._process = os.getpid()
        first = (self._producer << PRODUCER_SHIFT) + self._begun
        self._begun += count
        return np.arange(first, first + count)

    def state(self) -> dict[str, int | None]:
        """The producer's number and the counter."""
        return {"producer": self._producer, "begun": self._begun}

    def load(self, state: Mapping[str, int | None]) -> None:
        """Continue from what `state` returned."""
        self._producer, self._begun = state["producer"], int(state["begun"] or 0)
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, int | None]:
        # a copy, in this process or another one, draws a number of its own
        return {"_given": self._given}

    def __setstate__(self, state: Mapping[str, int | None]) -> None:
        self.__init__(state["_given"])  # type: ignore[misc]


class GivenIds(NamedTuple):
    """What is kept from call to call for rows without ids."""

    numbers: TrajectoryNumbers
    ended: EndedRows


def assign_ids(
    batch: TensorDictBase,
    fresh: FlatRows,
    held: FlatRows | None,
    given: GivenIds,
    *,
    columns: bool,
) -> FlatRows:
    """Assign ids and steps to rows; a row that continues a held one takes its id."""
    # Inside a call, neighbours along the last dimension continue each other unless a marker or
    # their observations contradict it. The first row of such a segment, its head, continues a held
    # row if its observation equals that row's next observation bit for bit. Ambiguous matches,
    # several held rows or several heads with equal bits, are cuts.
    width, count = fresh.shape[-1], len(fresh)
    starts = cuts_before(fresh)  # [N]
    starts[::width] = True
    contradicted = contradictions(batch)
    if contradicted is not None:
        # contradicted[i]: rows i and i + 1 contradict each other
        starts[1:] |= contradicted.reshape(-1).cpu().numpy()[:-1]
    heads = np.flatnonzero(starts)  # [S], the first row of each segment
    given.ended.see(fresh, heads)
    segment = starts.cumsum() - 1  # [N]
    ids, begin = np.full(len(heads), -1), np.zeros(len(heads), dtype=np.int64)
    # rows of other keys or shapes than the held ones raise later, when the two are concatenated;
    # held rows are real, and have lost their mask
    tails = {key: tail for key, tail in fresh.tails.items() if key != keys.MASK}
    if held is not None and held.tails == tails | dict.fromkeys(_OWN, torch.Size()):
        match = _column_matches if columns else _matches
        for head, tail in zip(*match(held, fresh, heads), strict=True):
            ids[head] = held.leaves[OWN_ID][tail]
            begin[head] = held.leaves[OWN_STEP][tail] + 1
    begun = ids < 0
    ids[begun] = given.numbers.draw(int(begun.sum()))
    own = {OWN_ID: ids[segment], OWN_STEP: np.arange(count) - heads[segment] + begin[segment]}
    leaves = fresh.leaves | {key: fresh.index(column) for key, column in own.items()}
    tails = fresh.tails | dict.fromkeys(own, torch.Size())
    return replace(fresh, leaves=leaves, tails=tails)


def _matches(held: FlatRows, fresh: FlatRows, heads: Array) -> tuple[Array, Array]:
    """Indices of heads and of the held rows that they continue: ``[J]`` and ``[J]``."""
    ids, steps = (held.leaves[key].cpu().numpy() for key in (OWN_ID, OWN_STEP))
    order = np.lexsort((steps, ids))  # by id, then by step
    lasts = order[np.append(ids[order][1:] != ids[order][:-1], True)]
    tails = lasts[_may_have_successor(held)[lasts]]
    firsts = np.flatnonzero(_may_have_predecessor(fresh)[heads])
    # bytes that a single tail and a single head have are a match
    expected = _of_one(listed_bytes(held, tails, 1))
    shown = _of_one(listed_bytes(fresh, heads[firsts], 0))
    found = [(place, expected[one]) for one, place in shown.items() if one in expected]
    head, tail = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return firsts[head], tails[tail]


def _of_one(values: Sequence[bytes]) -> dict[bytes, int]:
    """Values that occur once, and where."""
    counts = Counter(values)
    return {one: place for place, one in enumerate(values) if counts[one] == 1}


def _column_matches(held: FlatRows, fresh: FlatRows, heads: Array) -> tuple[Array, Array]:
    """The same for columns: row b can continue only row b."""
    wide, width = held.shape[-1], fresh.shape[-1]
    rows = np.arange(len(fresh) // width)
    tails, firsts = rows * wide + wide - 1, rows * width
    matches = _may_have_successor(held)[tails] & _may_have_predecessor(fresh)[firsts]
    matches &= (compared_bytes(held, tails, 1) == compared_bytes(fresh, firsts, 0)).all(1)
    return np.searchsorted(heads, firsts[matches]), tails[matches]


def _may_have_successor(rows: FlatRows) -> Array:
    """Rows that may have a successor: not done, next observation present; bool ``[N]``."""
    return ~rows.flagged((*keys.NEXT_DONE_KEYS, keys.NEXT_MISSING))


def _may_have_predecessor(rows: FlatRows) -> Array:
    """Rows that may have a predecessor: real, and no first step; bool ``[N]``."""
    return ~(rows.flagged([(keys.IS_INIT,)]) | is_padding(rows))
