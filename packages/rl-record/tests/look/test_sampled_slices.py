import torch

from rl_layout.testing import trajectories
from rl_record.look.sampled_slices import SampledSlices
from rl_record.look.shown_rows import SampledRows
from rl_record.look.trajectories import Trajectories


def test_runs_of_a_sample_by_hand():
    found = Trajectories.of(trajectories([4, 3]))
    rows = torch.tensor([2, 3, 4, 5, 5, 6, 0])
    slices = SampledSlices.of(SampledRows(rows, None, "S"), found)
    assert slices.rows.tolist() == [2, 4, 5, 0]  # a run ends with its trajectory
    assert slices.lengths.tolist() == [2, 2, 2, 1]
    assert slices.owners.tolist() == [0, 1, 1, 0]
    assert slices.offsets.tolist() == [2, 0, 1, 0]
    assert (slices.num_rows, slices.num_distinct) == (7, 6)


def test_slices_that_follow_each_other_are_two():
    found = Trajectories.of(trajectories([4]))
    sample = SampledRows(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1]), "S")
    assert SampledSlices.of(sample, found).lengths.tolist() == [2, 2]


def test_an_empty_sample_has_no_run():
    sample = SampledRows(torch.empty(0, dtype=torch.int64), None, "S")
    assert not SampledSlices.of(sample, None).has_runs


def test_neighbours_by_chance_are_no_runs():
    found = Trajectories.of(trajectories([9]))
    rows = torch.tensor([4, 0, 1, 8, 2])
    assert not SampledSlices.of(SampledRows(rows, None, "S"), found).has_runs
    assert SampledSlices.of(SampledRows(rows.sort().values, None, "S"), found).has_runs
