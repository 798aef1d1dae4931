"""Ids, steps and first rows, against a loop that counts them one by one."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_collect import TrajectoryIds


def by_hand(over, cuts):
    """Play the columns of `over` [B, T] one by one; cut every environment before some columns."""
    current, steps, begun, rows = [-1] * len(over), [0] * len(over), 0, []
    fresh = [True] * len(over)
    for t in range(over.shape[1]):
        for b in range(len(over)):
            if fresh[b] or t in cuts:
                current[b], steps[b], begun, fresh[b] = begun, 0, begun + 1, True
        rows.append([(fresh[b], current[b], steps[b]) for b in range(len(over))])
        for b in range(len(over)):
            fresh[b], steps[b] = bool(over[b, t]), steps[b] + 1
    return np.array(rows).transpose(1, 0, 2)


@given(st.data())
def test_any_division_into_batches_gives_the_marks_that_a_loop_gives(data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    num_envs = data.draw(st.integers(1, 4))
    flags = st.lists(st.booleans(), min_size=num_envs * sum(sizes), max_size=num_envs * sum(sizes))
    over = np.array(data.draw(flags)).reshape(num_envs, sum(sizes))
    edges = np.cumsum([0, *sizes])
    cuts = data.draw(st.sets(st.sampled_from(edges[:-1].tolist())))
    ids, parts = TrajectoryIds((num_envs,), producer=5), []
    for start, stop in itertools.pairwise(edges.tolist()):
        if start in cuts:
            ids.cut()
        parts.append(np.stack(ids.mark(over[:, start:stop]), -1))
    found = np.concatenate(parts, 1)
    found[..., 1] -= 5 << 32
    assert (found == by_hand(over, cuts)).all()


def test_one_environment_without_dimensions():
    marks = TrajectoryIds((), producer=0).mark(np.array([False, False, True, False]))
    assert marks.is_init.tolist() == [True, False, False, True]
    assert marks.ids.tolist() == [0, 0, 0, 1]
    assert marks.steps.tolist() == [0, 1, 2, 0]


def test_a_cut_of_some_environments_leaves_the_others_alone():
    ids = TrajectoryIds((3,), producer=0)
    ids.mark(np.zeros((3, 2), dtype=bool))
    ids.cut(np.array([False, True, False]))
    marks = ids.mark(np.zeros((3, 1), dtype=bool))
    assert marks.is_init[:, 0].tolist() == [False, True, False]
    assert marks.ids[:, 0].tolist() == [0, 3, 2]
    assert marks.steps[:, 0].tolist() == [2, 0, 2]


def test_producers_draw_different_numbers():
    numbers = {TrajectoryIds(()).producer for _ in range(20)}
    assert len(numbers) == 20
    assert all(0 <= number < 1 << 31 for number in numbers)


def test_a_saved_one_goes_on_where_it_stopped():
    over = np.random.default_rng(0).random((3, 20)) < 0.2
    ids, other = TrajectoryIds((3,)), TrajectoryIds((3,))
    ids.mark(over[:, :9])
    state = ids.state_dict()
    expected = ids.mark(over[:, 9:])
    other.load_state_dict(state)
    for one, two in zip(expected, other.mark(over[:, 9:]), strict=True):
        assert (one == two).all()
    assert isinstance(state["ids"], torch.Tensor)


def test_bad_producers_and_states_are_refused():
    with pytest.raises(ValueError, match="below 2"):
        TrajectoryIds((), producer=1 << 31)
    with pytest.raises(ValueError, match=r"batch size \(3,\)"):
        TrajectoryIds((2,)).load_state_dict(TrajectoryIds((3,)).state_dict())


def test_a_counter_that_is_used_up_is_an_error():
    ids = TrajectoryIds(())
    ids.begun = 1 << 32
    with pytest.raises(OverflowError, match="start another"):
        ids.mark(np.array([False]))


def test_marks_that_the_caller_changes_are_none_of_the_next_batch():
    ids, goes_on = TrajectoryIds((2,), producer=0), np.zeros((2, 3), dtype=bool)
    for first in (0, 3, 6, 9):
        marks = ids.mark(goes_on)
        assert marks.ids.tolist() == [[0, 0, 0], [1, 1, 1]]
        assert marks.steps.tolist() == [[first, first + 1, first + 2]] * 2
        assert marks.is_init.any() == (first == 0)
        marks.ids.fill(7)
        marks.steps.fill(7)
        marks.is_init.fill(True)
        assert not ids.fresh.any()
