from __future__ import annotations

import torch

from rl_layout.testing import EndKind, trajectories
from rl_transforms import reference


def test_multi_step_reference_matches_two_trajectories_by_hand():
    batch = trajectories([3, 2], [EndKind.TERMINATED, EndKind.CUT])  # rewards 1 2 3, 1 2
    made = reference.multi_step(batch, 0.5, 2)
    assert made["next", "reward"].flatten().tolist() == [2, 3.5, 3, 2, 2]
    assert made["next", "steps_to_next_obs"].flatten().tolist() == [2, 2, 1, 2, 1]
    assert made["next", "terminated"].flatten().tolist() == [False, True, True, False, False]
    assert made["next", "observation"][:, 1].tolist() == [2, 3, 3, 2, 2]
    assert made["observation"].equal(batch["observation"])


def test_next_rows_matches_two_trajectories_by_hand():
    batch = trajectories([3, 2], [EndKind.TERMINATED, EndKind.CUT])
    assert reference.next_rows(batch).tolist() == [1, 2, -1, 4, -1]
    far = reference.multi_step(batch, 0.5, 2)
    assert reference.next_rows(far).tolist() == [2, -1, -1, -1, -1]
    assert reference.next_rows(batch[torch.tensor([0, 2])]).tolist() == [-1, -1]
