from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl_replay.samplers import slices
from rl_replay.samplers.slice_layout import SpanLimits
from rl_replay.trajectories.index import TrajectoryIndex


@st.composite
def indices(draw):
    """Rows of some environments in any order, some of them not real, in a ring gone round or not.

    Returns:
        The index, and for each trajectory the numbers of its rows that stand.
    """
    capacity = draw(st.integers(3, 25))
    index = TrajectoryIndex(capacity)
    newest: dict[int, int] = {}
    chains: list[list[int]] = []
    chain_of: dict[int, list[int]] = {}
    first = 0
    for count in draw(st.lists(st.integers(1, capacity), min_size=1, max_size=4)):
        back = []
        for number in range(first, first + count):
            who = draw(st.sampled_from(["unreal", "new", 0, 1, 2]))
            before = newest.get(who, -capacity)
            if who == "unreal":
                back.append(-1)
                continue
            if before > number - capacity:
                back.append(number - before)
                chain_of[number] = chain_of[before]
            else:
                back.append(0)
                chain_of[number] = []
                chains.append(chain_of[number])
            chain_of[number].append(number)
            if who != "new":
                newest[who] = number
        index.append(first, np.array(back))
        first += count
    standing = [[row for row in chain if row >= first - capacity] for chain in chains]
    return index, [chain for chain in standing if chain]


def places_of(chains, length, minimum, reach):
    """What `by_step` promises, written down: every place as the rows that it holds."""
    found = []
    for chain in chains:
        if len(chain) < minimum:
            continue
        whole = max(len(chain) - length, 0)
        begins = range(-reach.left, min(whole + reach.right, len(chain) - 1) + 1)
        found += [tuple(chain[max(begin, 0) : begin + length]) for begin in begins]
    return Counter(found)


def rows_of(index, slots, begins, totals, length):
    offsets, lengths = slices.inside(begins, totals, length)
    if not len(slots):
        return Counter()
    parts = np.split(index.rows(slots, offsets, lengths), lengths.cumsum()[:-1])
    return Counter(tuple(part.tolist()) for part in parts)


CASES = given(
    indices(),
    st.integers(1, 6),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.sampled_from([False, True]),
)


@CASES
@settings(deadline=None)
def test_places_have_one_number_each(indexed, length, span, strict):
    """Numbers are drawn uniformly, and those of no place passed over: so places are uniform."""
    index, chains = indexed
    reach, minimum = SpanLimits(*(min(side, length - 1) for side in span)), length if strict else 1
    window = index.window()
    numbers = np.arange(slices.candidates(index, window, reach))
    found = slices.begins_among(index, window, numbers, length, minimum, reach)
    assert rows_of(index, *found, length) == places_of(chains, length, minimum, reach)


@CASES
@settings(deadline=None)
def test_places_of_all_trajectories_have_one_number_each(indexed, length, span, strict):
    index, chains = indexed
    reach, minimum = SpanLimits(*(min(side, length - 1) for side in span)), length if strict else 1
    wanted = places_of(chains, length, minimum, reach)
    if not wanted:
        with pytest.raises(ValueError, match=f"no trajectory has {minimum} rows"):
            slices.begins_of_all(index, length, minimum, reach)
        return
    slots, totals, ends = slices.begins_of_all(index, length, minimum, reach)
    which, begins = slices.begin_at(ends, np.arange(ends[-1]), reach)
    assert rows_of(index, slots[which], begins, totals[which], length) == wanted


@given(indices(), st.integers(1, 6), st.integers(0, 1000))
@settings(deadline=None)
def test_steps_are_in_equally_many_places_with_a_whole_span(indexed, length, seed):
    """So each is as likely to be sampled; and what is drawn is one of the places."""
    index, chains = indexed
    assume(chains)
    reach = SpanLimits.of(True, length)
    places = places_of(chains, length, 1, reach)
    times = Counter(row for place, count in places.items() for row in place * count)
    assert times == {row: length for chain in chains for row in chain}
    generator = torch.Generator().manual_seed(seed)
    drawn = slices.by_step(index, 30, length, reach=reach, generator=generator)
    parts = np.split(index.rows(*drawn), drawn.lengths.cumsum()[:-1])
    assert {tuple(part.tolist()) for part in parts} <= set(places)


def test_places_are_drawn_as_often_as_they_should_be():
    """Also where nearly every trajectory is passed over, and all are looked at in the end."""
    index = TrajectoryIndex(400)
    lengths = [2] * 190 + [6]
    index.append(0, np.concatenate([np.arange(n) > 0 for n in lengths]).astype(np.int64))
    reach, draws = SpanLimits(left=2, right=1), 4000
    drawn = slices.by_step(
        index, draws, 4, minimum=4, reach=reach, generator=torch.Generator().manual_seed(0)
    )
    found = Counter(zip(drawn.offsets.tolist(), drawn.lengths.tolist(), strict=True))
    assert set(found) == {(0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 3)}
    # 5 standard deviations of a count
    assert max(abs(count - draws / 6) for count in found.values()) < 5 * (draws / 6) ** 0.5


def test_draw_refuses_an_index_without_rows():
    with pytest.raises(ValueError, match="there is no trajectory yet: write rows"):
        slices.by_step(TrajectoryIndex(5), 3, 2, reach=SpanLimits(left=1))
