"""Marker columns of rows, by hand."""

from __future__ import annotations

import numpy as np
import torch

from rl_layout.testing import trajectories
from rl_replay.linking.marker_keys import MarkerKeys
from rl_replay.linking.markers import MarkerColumns, as_numpy
from rl_slabs import RowSchema


def test_markers_cut_between_trajectories() -> None:
    batch = trajectories([2, 1])
    marks = MarkerColumns.of(batch, MarkerKeys.of(RowSchema.from_tensordict(batch)))
    assert marks.joined(slice(0, 2), slice(1, 3)).tolist() == [True, False]
    assert marks.before_others().tolist() == [True, False, False]
    assert marks.after_others().tolist() == [False, True, False]


def test_ids_alone_cut_where_they_differ() -> None:
    columns = {"episode": np.array([4, 4, 5])}
    marks = MarkerColumns.read(columns.get, MarkerKeys(ids=("episode",)), 3)
    assert marks.joined(slice(0, 2), slice(1, 3)).tolist() == [True, False]
    assert marks.name(2) == ((5,), None)


def test_absent_columns_are_skipped() -> None:
    marks = MarkerColumns.of(trajectories([2, 1]), MarkerKeys(step=("collector", "traj_step")))
    assert marks.step is not None
    assert marks.step.tolist() == [0, 1, 0]
    assert (marks.ids, marks.init, marks.ends, marks.real) == ((), None, (), None)
    assert marks.name(1) == ((), 1)


def test_copied_markers_do_not_change_with_their_source() -> None:
    column = np.array([4, 4])
    marks = MarkerColumns.read({"episode": column}.get, MarkerKeys(ids=("episode",)), 2)
    copy = marks.copy()
    column[:] = 7
    assert copy.ids[0].tolist() == [4, 4]


def test_only_tensors_become_arrays() -> None:
    array = as_numpy(torch.ones(2))
    assert array is not None
    assert array.tolist() == [1.0, 1.0]
    assert as_numpy(None) is None
