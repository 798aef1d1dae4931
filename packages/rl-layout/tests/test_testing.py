from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given

from rl_layout import EndKind, Segments, check_layout, keys
from rl_layout.testing import check_segments, environments, flat_batches, trajectories


def test_observations_carry_trajectory_and_step():
    batch = trajectories([2, 3], first_id=4, first_step=6)
    assert batch["observation"].tolist() == [[4, 6], [4, 7], [5, 0], [5, 1], [5, 2]]
    assert batch["next", "observation"].tolist() == [[4, 7], [4, 8], [5, 1], [5, 2], [5, 3]]
    assert batch["is_init"].flatten().tolist() == [False, False, True, False, False]
    assert batch.names == ["time"]


def test_environments_run_on_and_share_no_id():
    batch = environments(3, 7, [4, 5], [EndKind.TERMINATED, EndKind.TRUNCATED])
    ids = [set(row.tolist()) for row in batch[keys.TRAJ_IDS]]
    assert not ids[0] & ids[1]
    assert not ids[1] & ids[2]
    assert batch.batch_size == (3, 7)


@given(flat_batches())
def test_flat_batches_obey_the_contract(batch):
    check_layout(batch).raise_if_broken()


@pytest.mark.parametrize(
    ("lengths", "kinds"), [([], []), ([0], [EndKind.CUT]), ([2, 3], [EndKind.CUT])]
)
def test_trajectories_refuses_lengths_and_kinds_that_give_no_batch(lengths, kinds):
    with pytest.raises(ValueError, match="one kind per trajectory"):
        trajectories(lengths, kinds)


def test_a_trajectory_without_rows_has_no_end():
    assert torch.equal(
        trajectories([2, 0, 3])[keys.NEXT_DONE].nonzero()[:, 0], torch.tensor([1, 4])
    )


@pytest.mark.parametrize(
    ("starts", "lengths", "shape"),
    [
        ([0, 2], [2], (5,)),
        ([0, 2], [2, 0], (5,)),
        ([0, 1], [2, 3], (5,)),
        ([0, 5], [2, 1], (5,)),
        ([0, 2], [2, 2], (2, 3)),
    ],
)
def test_check_segments_finds_a_broken_invariant(starts, lengths, shape):
    kinds = torch.zeros(len(starts), dtype=torch.uint8)
    segments = Segments(torch.tensor(starts), torch.tensor(lengths), kinds, torch.Size(shape))
    with pytest.raises(AssertionError):
        check_segments(segments)


WITHOUT_HYPOTHESIS = """
import sys
sys.modules["hypothesis"] = None  # as on an install without test extras
from rl_layout import testing
assert len(testing.trajectories([2, 3])) == 5
for name in ("batches", "rows"):
    try:
        getattr(testing, name)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_builders_need_no_hypothesis_and_strategies_name_the_extra():
    command = [sys.executable, "-c", WITHOUT_HYPOTHESIS]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith("ImportError rl_layout.testing.batches is a hypothesis strategy")
    assert "pip install 'rl-layout[testing]'" in said[0]
    assert "no attribute 'rows': there are EndKind, batches" in said[1]
