"""First and last rows of trajectories, against a loop over rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_replay import find_start_stop_traj


def by_loop(ends, *, at_capacity, cursor):
    """Each column by hand: walk back from each last row to the one before."""
    found = []
    for column in range(ends.shape[1]):
        flags = ends[:, column].tolist()
        if not at_capacity:
            flags[-1] = True
        elif cursor is not None:
            flags[cursor] = True
        if not any(flags):
            flags[-1] = True
        for last, flag in enumerate(flags):
            if flag:
                first, length = last, 1
                while not flags[first - 1] and length < len(flags):
                    first, length = (first - 1) % len(flags), length + 1
                found.append(((first, column), (last, column), length))
    return found


@given(
    st.integers(1, 9).flatmap(
        lambda t: st.lists(st.lists(st.booleans(), min_size=t, max_size=t), min_size=1, max_size=3)
    ),
    st.booleans(),
    st.none() | st.integers(0, 8),
)
def test_flags_are_those_of_a_loop(columns, at_capacity, cursor):
    ends = torch.tensor(columns).T
    cursor = None if cursor is None else cursor % len(ends)
    first, last, lengths = find_start_stop_traj(end=ends, at_capacity=at_capacity, cursor=cursor)
    found = zip(
        map(tuple, first.tolist()), map(tuple, last.tolist()), lengths.tolist(), strict=True
    )
    assert list(found) == by_loop(ends, at_capacity=at_capacity, cursor=cursor)


def test_ids_cut_where_they_change_and_a_full_ring_goes_round():
    ids = torch.tensor([7, 7, 3, 3, 3, 7])
    first, last, lengths = find_start_stop_traj(trajectory=ids, at_capacity=True)
    assert (first.flatten().tolist(), last.flatten().tolist()) == ([5, 2], [1, 4])
    assert lengths.tolist() == [3, 3]
    first, last, lengths = find_start_stop_traj(
        trajectory=ids, at_capacity=True, cursor=range(5, 6)
    )
    assert lengths.tolist() == [2, 3, 1]
    first, last, lengths = find_start_stop_traj(trajectory=ids, at_capacity=False)
    assert lengths.tolist() == [2, 3, 1]


def test_one_column_has_one_index():
    first, _, _ = find_start_stop_traj(end=torch.zeros(4, 2, 3, dtype=torch.bool), at_capacity=True)
    assert first.shape == (6, 3)
    assert first[:, 1:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_nothing_to_look_at_is_refused(kind):
    for empty in (torch.zeros(0, dtype=torch.bool), torch.tensor(True)):
        with pytest.raises(kind, match="one at least"):
            find_start_stop_traj(end=empty, at_capacity=False)
    with pytest.raises(kind, match="cursor"):
        find_start_stop_traj(end=torch.ones(2, dtype=torch.bool), at_capacity=True, cursor=range(0))
    with pytest.raises(TypeError, match="one of them"):
        find_start_stop_traj(at_capacity=True)
