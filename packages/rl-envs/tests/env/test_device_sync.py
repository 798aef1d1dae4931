"""Masks of resets, read on the host: none, some or all of the rows."""

import pytest
import torch

from rl_envs import TransformedEnv
from rl_envs.env.device_sync import may_wait, names_every_row, names_no_row
from rl_envs.testing import CountingEnv


@pytest.mark.parametrize("rows", [[False, False], [True, False], [True, True]])
def test_masks_name_no_row_or_every_row(rows):
    masks = {(): torch.tensor(rows).unsqueeze(-1), ("agents",): torch.tensor([rows[:1]])}
    assert names_no_row(masks) is (not any(rows))
    assert names_every_row(masks) is all(rows)


def test_may_wait_asks_the_innermost_environment():
    env = CountingEnv()
    env.waits_for_device = False
    assert not may_wait(TransformedEnv(env))
    assert may_wait(TransformedEnv(CountingEnv()))
