from __future__ import annotations

import pytest
import torch

from rl_layout.testing import trajectories
from rl_transforms.history.frame_history import FrameHistory
from rl_transforms.history.walk import numbered_rows


@pytest.fixture
def rows():
    return trajectories([3, 1])


def own(rows):
    """Rows in the source of their own batch."""
    return numbered_rows("CatFrames", rows, None)


def test_history_repeats_the_first_row(rows):
    history = FrameHistory.of("CatFrames", rows, own(rows), 2)
    assert history.places.tolist() == [[0, 0], [0, 1], [1, 2], [3, 3]]
    assert history.ages.tolist() == [0, 1, 1, 0]
    assert history.is_whole.all()


def test_history_ahead_ends_before_the_target(rows):
    near = own(rows)
    history = FrameHistory.of("CatFrames", rows, near, 2)
    places, proved = history.ahead(near, torch.tensor([2, 1, 1, 1]))
    assert places.flatten().tolist() == [1, 1, 2, 3]
    assert proved.all()


def test_history_without_markers_is_refused(rows):
    bare = rows.exclude("is_init", ("collector", "traj_step"))
    with pytest.raises(KeyError, match="traj_step"):
        FrameHistory.of("CatFrames", bare, own(rows), 2)
