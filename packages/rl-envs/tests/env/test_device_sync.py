"""Masks of resets, read on the host: none, some or all of the rows."""

import pytest
import torch

from rl_envs import TransformedEnv
from rl_envs.env.device_sync import can_sync, selects_every_row, selects_no_row
from rl_envs.testing import CountingEnv


@pytest.mark.parametrize("rows", [[False, False], [True, False], [True, True]])
def test_masks_select_no_row_some_or_every_row(rows):
    masks = {(): torch.tensor(rows).unsqueeze(-1), ("agents",): torch.tensor([rows[:1]])}
    assert selects_no_row(masks) is (not any(rows))
    assert selects_every_row(masks) is all(rows)


def test_can_sync_asks_the_innermost_environment():
    env = CountingEnv()
    env.waits_for_device = False
    assert not can_sync(TransformedEnv(env))
    assert can_sync(TransformedEnv(CountingEnv()))
