"""The marker columns that a schema holds, and those of rows, by hand."""

from __future__ import annotations

import numpy as np
import torch

from rl_layout.testing import trajectories
from rl_replay.linking.markers import MarkerColumns, MarkerKeys, as_numpy, end_candidates
from rl_slabs import RowSchema

FLAG = (torch.bool, (1,))
LEAF = (torch.float32, (3,))


def test_markers_are_found_by_the_names_of_the_contract() -> None:
    markers = MarkerKeys.of(RowSchema({("next", "done"): FLAG, "episode": (torch.int64, ())}))
    assert (markers.ids, markers.ends, markers.step) == (("episode",), (("next", "done"),), None)
    assert markers.cuts
    assert not markers.numbered


def test_observations_are_leaves_with_a_next_leaf() -> None:
    markers = MarkerKeys.of(RowSchema({"a": LEAF, ("next", "a"): LEAF, "action": LEAF}))
    assert markers.observations == (("a", ("next", "a")),)
    assert not markers.cuts


def test_explicit_markers_cut_as_well() -> None:
    markers = MarkerKeys(ids=("episode",)).with_explicit(["game"], [("next", "life_lost")])
    assert set(markers.ids) == {"episode", "game"}
    assert markers.ends == (("next", "life_lost"),)


def test_flags_that_are_no_markers_are_candidates() -> None:
    missing = ("collector", "next_missing")  # says something else
    schema = RowSchema({missing: FLAG, ("next", "life_lost"): FLAG, "observation": LEAF})
    assert end_candidates(schema) == [("next", "life_lost")]


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
