"""Rows in the order of their trajectories, against following the links one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_replay.compact.order import CompactOrder, ExtraRows


def by_hand(back, counts):
    """Each trajectory as a list of rows."""
    begins = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    found = {}
    for row, distance in enumerate(back):
        before = row - int(distance)
        if distance and before >= begins[row]:
            found[row] = found.pop(before)
        else:
            found[row] = []
        found[row].append(row)
    return sorted(found.values())


@given(data=st.data(), producers=st.integers(1, 4), counts=st.lists(st.integers(1, 30), min_size=1))
def test_trajectories_are_those_of_the_links(data, producers, counts):
    back = []
    for count in counts:
        newest = {}
        for row in range(count):
            producer = data.draw(st.integers(0, producers - 1))
            is_new = data.draw(st.booleans()) and data.draw(st.booleans())
            before = newest.get(producer)
            gone = data.draw(st.integers(1, 3))  # the first rows may continue one that is gone
            back.append(gone + row if before is None and gone > 2 else 0)
            if before is not None and not is_new:
                back[-1] = row - before
            newest[producer] = row
    back = np.array(back, np.int32)
    order = CompactOrder.of_links(back, counts)
    rows = np.arange(len(back)) if order.order is None else order.order
    found = [part.tolist() for part in np.split(rows, np.cumsum(order.lengths)[:-1])]
    assert found == by_hand(back, counts)


@given(lengths=st.lists(st.integers(1, 5), min_size=1))
def test_extra_rows_come_after_each_trajectory(lengths):
    extras = ExtraRows.of_lengths(np.array(lengths))
    flags = [flag for length in lengths for flag in [False] * length + [True]]
    places = np.arange(len(flags))
    before = extras.before(places)
    assert extras.is_extra(places, before).tolist() == flags
    assert before.tolist() == [sum(flags[:place]) for place in places]
