"""The marker columns that a schema holds."""

from __future__ import annotations

import torch

from rl_replay.linking.marker_keys import MarkerKeys, end_candidates
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
    schema = RowSchema({("next", "life_lost"): FLAG, "observation": LEAF})
    assert end_candidates(schema) == [("next", "life_lost")]
