from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import Markers, Segments, keys
from rl_layout.testing import EndKind, trajectories


def test_markers_are_flattened_time_fastest():
    batch = trajectories([2, 4]).reshape(3, 2)
    assert Markers.of(batch).traj_ids.tolist() == [7, 7, 8, 8, 8, 8]


def test_absent_markers_are_none():
    batch = TensorDict({keys.IS_INIT: torch.ones(3, 1, dtype=torch.bool)}, [3])
    markers = Markers.of(batch)
    assert markers.done is None
    assert markers.traj_ids is None
    assert markers.boundary() is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (keys.IS_INIT, torch.zeros(5, dtype=torch.bool), r"\[5, 1\], got \[5\]. Call unsqueeze"),
        (keys.NEXT_DONE, torch.zeros(5, 2, dtype=torch.bool), r"\[5, 1\], got \[5, 2\]"),
        (keys.TRAJ_IDS, torch.zeros(5, 1, dtype=torch.int64), r"\[5\], got \[5, 1\]"),
        (keys.MASK, torch.zeros(5, 1, dtype=torch.bool), r"\[5\], got \[5, 1\]"),
    ],
)
def test_a_marker_of_another_shape_is_refused(key, value, message):
    with pytest.raises(ValueError, match=message):
        Segments.of(trajectories([2, 3]).set(key, value))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (keys.IS_INIT, torch.zeros(5, 1), "expected torch.bool, got torch.float32"),
        (keys.TRAJ_IDS, torch.zeros(5, dtype=torch.int32), "expected torch.int64, got torch.int32"),
    ],
)
def test_a_marker_of_another_dtype_is_refused(key, value, message):
    with pytest.raises(TypeError, match=message):
        Segments.of(trajectories([2, 3]).set(key, value))


@pytest.mark.parametrize("size", [[], [0], [3, 0]])
def test_a_batch_without_rows_is_refused(size):
    with pytest.raises(ValueError, match="batch size"):
        Segments.of(TensorDict({}, batch_size=size))


def test_time_must_come_last():
    batch = trajectories([2, 4]).reshape(3, 2)
    batch.names = ["time", None]
    with pytest.raises(ValueError, match=r"Call batch.transpose\(0, -1\)"):
        Segments.of(batch)


def test_a_batch_without_any_marker_is_refused():
    with pytest.raises(KeyError, match="expected one of is_init"):
        Segments.of(TensorDict({"observation": torch.zeros(3, 2)}, [3]))


def test_reading_markers_changes_nothing():
    batch = trajectories([2, 3], EndKind.TRUNCATED)
    before = batch.clone()
    Segments.of(batch)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    assert (batch == before).all()
