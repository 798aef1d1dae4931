"""Observations and other leaves that are written in place."""

from __future__ import annotations

import numpy as np
import torch

from rl_replay.testing.observed_rows import (
    filled,
    missing,
    observations,
    plain_batch,
    put,
    store,
    update,
)


def test_an_observation_written_in_place_is_not_the_next_one_of_the_row_before():
    rows = filled()
    update(rows, [2], {"observation": torch.tensor([70.0])})
    assert observations(rows) == ([0, 1, 70, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    assert rows.side.in_use() == 2


def test_that_holds_whatever_the_links_of_the_markers_say_by_then():
    rows = filled()
    update(rows, [2], {"observation": torch.tensor([70.0])}, [0])
    assert observations(rows)[1] == [1, 2, 3, 4, 5, 6]


def test_a_next_observation_written_in_place_is_nobodys_observation():
    rows = filled()
    update(rows, [2], {("next", "observation"): torch.tensor([70.0])})
    assert observations(rows) == ([0, 1, 2, 3, 4, 5], [1, 2, 70, 4, 5, 6])


def test_what_is_written_back_as_it_was_takes_no_more_room():
    rows = filled()
    found = rows.read(slice(0, 6)).select("observation", ("next", "observation"))
    update(rows, list(range(6)), found.to_dict(), [0, 1, 1, 1, 1, 1])
    assert observations(rows) == ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    assert rows.side.in_use() == 1


def test_other_leaves_written_in_place_change_no_link():
    rows = filled()
    update(rows, [2, 3], {("next", "reward"): torch.ones(2, 1)})
    assert rows.side.in_use() == 1
    assert rows.read(slice(0, 6))["next", "reward"].flatten().tolist() == [0, 0, 1, 1, 0, 0]


def test_a_row_gets_a_next_observation_in_place_that_it_did_not_have():
    batch = plain_batch(torch.arange(3.0), None, [5] * 3, [0, 1, 2])
    rows = store(batch, 8, keys=["observation"])
    put(rows, 0, batch, [0, 1, 1])
    update(rows, [2], {("next", "observation"): torch.tensor([3.0])})
    marks, following = missing(rows, 3)
    assert (marks, following.tolist()) == ([False] * 3, [1.0, 2.0, 3.0])


def test_many_distances_are_as_right_as_few():
    batch = plain_batch(torch.arange(6.0), torch.arange(1.0, 7), [5] * 6, list(range(6)))
    rows = store(batch, 9)
    rows.addresses.record(np.arange(1, 100))
    put(rows, 0, batch, [0, 1, 1, 1, 1, 1])
    update(rows, [3, 1], {"observation": torch.tensor([70.0, 80.0])})
    assert observations(rows) == ([0, 80, 2, 70, 4, 5], [1, 2, 3, 4, 5, 6])
