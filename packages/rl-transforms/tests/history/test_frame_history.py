from __future__ import annotations

import pytest
import torch

from rl_layout.reference import ListRowSource
from rl_layout.testing import trajectories
from rl_transforms.history.frame_history import FrameHistory, InBatch, InBuffer


@pytest.fixture
def rows():
    return trajectories([3, 1])


def test_neighbours_in_a_batch_are_proved_inside_segments(rows):
    places, proved = InBatch(rows).at(-1)
    assert proved.tolist() == [False, True, True, False]
    assert places[proved].tolist() == [0, 1]


def test_neighbours_in_a_buffer_are_proved_by_its_markers(rows):
    places, proved = InBuffer(ListRowSource(rows), torch.tensor([1, 3])).at(-1)
    assert proved.tolist() == [True, False]
    assert places[0] == 0


def test_history_repeats_the_first_row(rows):
    history = FrameHistory.of("CatFrames", rows, InBatch(rows), 2)
    assert history.places.tolist() == [[0, 0], [0, 1], [1, 2], [3, 3]]
    assert history.ages.tolist() == [0, 1, 1, 0]
    assert history.is_whole.all()


def test_history_ahead_ends_before_the_target(rows):
    near = InBatch(rows)
    history = FrameHistory.of("CatFrames", rows, near, 2)
    places, proved = history.ahead(near, torch.tensor([2, 1, 1, 1]))
    assert places.flatten().tolist() == [1, 1, 2, 3]
    assert proved.all()


def test_history_without_markers_is_refused(rows):
    bare = rows.exclude("is_init", ("collector", "traj_step"))
    with pytest.raises(KeyError, match="traj_step"):
        FrameHistory.of("CatFrames", bare, InBatch(rows), 2)
