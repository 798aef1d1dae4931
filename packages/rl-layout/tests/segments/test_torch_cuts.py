from __future__ import annotations

import pytest
import torch
from hypothesis import given

from rl_layout import Segments, keys
from rl_layout.segments.markers import PIECE, Markers
from rl_layout.segments.torch_cuts import cut_by_torch, cut_rows
from rl_layout.testing import EndKind, batches, trajectories

TERMINATED, TRUNCATED, CUT = EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT
ALL = (keys.IS_INIT, keys.TRAJ_IDS, keys.TRAJ_STEP, keys.NEXT_DONE)


def only(batch, *kept):
    gone = [key for key in (*ALL, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED) if key not in kept]
    return batch.exclude(*gone)


@pytest.mark.parametrize("key", ALL)
def test_markers_cut_alone(key):
    batch = only(trajectories([2, 4, 3]), key)
    assert Segments.of(batch).lengths.tolist() == [2, 4, 3]


@pytest.mark.parametrize("key", ALL)
def test_markers_that_cut_do_so_where_the_others_join(key):
    cut = only(trajectories([2, 3]), key)
    batch = trajectories([5], CUT).update(cut.select(key))
    assert Segments.of(batch).lengths.tolist() == [2, 3]


def test_a_hole_in_the_steps_cuts():
    rows = trajectories([6], CUT)[torch.tensor([0, 1, 3, 4, 5])]
    assert Segments.of(rows).lengths.tolist() == [2, 3]


def test_holes_are_found_at_any_row_of_a_large_batch():
    steps = torch.arange(3 * PIECE)
    holes = [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE - 1]
    for hole in holes:
        steps[hole:] += 1
    segments = Segments.from_ids(torch.zeros_like(steps), steps)
    assert segments.starts.tolist() == [0, *holes]


@given(batches())
def test_pieces_cut_where_operations_on_whole_arrays_do(batch):
    markers = Markers.of(batch)
    assert cut_rows(markers).equal(cut_by_torch(markers))


def test_n_step_done_cuts_only_where_the_next_observation_is_one_step_away():
    batch = trajectories([4, 3])
    batch[keys.NEXT_DONE][:4] = batch[keys.NEXT_TERMINATED][:4] = True  # horizon 4
    horizon = torch.tensor([4, 3, 2, 1, 1, 1, 1]).unsqueeze(-1)
    segments = Segments.of(batch.set(keys.STEPS_TO_NEXT_OBS, horizon))
    assert segments.lengths.tolist() == [4, 3]
    assert segments.kinds.tolist() == [TERMINATED, TERMINATED]


def test_an_n_step_slice_that_stops_before_the_end_is_cut():
    batch = trajectories([3], TRUNCATED)
    batch[keys.NEXT_DONE].fill_(True)
    batch[keys.NEXT_TRUNCATED].fill_(True)
    batch.set(keys.STEPS_TO_NEXT_OBS, torch.tensor([4, 3, 2]).unsqueeze(-1))
    assert Segments.of(batch).kinds.tolist() == [CUT]


@pytest.mark.parametrize(
    ("kept", "kind"),
    [
        ([keys.NEXT_DONE], TERMINATED),
        ([keys.NEXT_DONE, keys.NEXT_TERMINATED], TRUNCATED),
        ([keys.NEXT_DONE, keys.NEXT_TRUNCATED], TRUNCATED),
        ([keys.NEXT_TRUNCATED], TRUNCATED),
        ([keys.TRAJ_IDS], CUT),
    ],
)
def test_a_truncation_is_told_from_the_flags_that_there_are(kept, kind):
    batch = only(trajectories([3], TRUNCATED), *kept)
    assert Segments.of(batch).kinds.tolist() == [kind]


@pytest.mark.parametrize(
    "kept", [[keys.NEXT_DONE, keys.NEXT_TRUNCATED], [keys.NEXT_TERMINATED], [keys.NEXT_DONE]]
)
def test_a_termination_is_told_from_the_flags_that_there_are(kept):
    assert Segments.of(only(trajectories([3]), *kept)).kinds.tolist() == [TERMINATED]


def test_padding_belongs_to_no_segment():
    batch = trajectories([2, 4, 3])
    mask = torch.tensor([0, 1, 1, 1, 0, 0, 0, 1, 0], dtype=torch.bool)
    segments = Segments.of(batch.set(keys.MASK, mask))
    assert segments.starts.tolist() == [1, 2, 7]
    assert segments.lengths.tolist() == [1, 2, 1]
    assert segments.ids.tolist() == [-1, 0, 1, 1, -1, -1, -1, 2, -1]
    assert segments.positions.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_a_batch_of_padding_alone_has_no_segment():
    batch = trajectories([3]).set(keys.MASK, torch.zeros(3, dtype=torch.bool))
    assert len(Segments.of(batch)) == 0
    assert repr(Segments.of(batch)) == "Segments(0 in 3 rows)"
