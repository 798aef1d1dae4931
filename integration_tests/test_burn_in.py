"""A transform burns in as the recurrent modules do by themselves, on samples of a buffer."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import torch

from rl_layout import Segments, keys, set_recurrent_mode
from rl_layout.testing import EndKind, trajectories
from rl_recurrent import GRUModule, LSTMModule
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_transforms import BurnIn


def sampled(states):
    ends = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
    rows = trajectories([40, 31, 60], ends)
    first = rows[keys.TRAJ_STEP] == 0
    for name in states:
        rows[name] = torch.rand(len(rows), 1, 5).masked_fill(first[:, None, None], 0)
    sampler = SliceSampler(num_slices=9, strict_length=False)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200), sampler=sampler, batch_size=108)
    buffer.extend(rows)
    torch.manual_seed(3)
    return buffer.sample()


def burnt_and_whole(module, plain, states):
    plain.load_state_dict(module.state_dict())
    batch = sampled(states)
    with set_recurrent_mode("recurrent"):
        left = plain(BurnIn(plain, 4)(batch))
        whole = module(batch)
    segments = Segments.of(batch)
    steps = segments.first(batch[keys.TRAJ_STEP])
    is_burnt = segments.positions < segments.spread(4 * (steps > 0))
    return left["features"], whole["features"][~is_burnt]


def test_a_gru_burnt_in_by_the_transform_is_one_burnt_in_by_itself():
    given = {"input_size": 2, "hidden_size": 5, "in_key": "observation", "out_key": "features"}
    left, whole = burnt_and_whole(
        GRUModule(**given, burn_in=4), GRUModule(**given), ["recurrent_state"]
    )
    torch.testing.assert_close(left, whole)
    assert left.requires_grad


def test_an_lstm_burnt_in_by_the_transform_is_one_burnt_in_by_itself():
    given = {"input_size": 2, "hidden_size": 5, "in_key": "observation", "out_key": "features"}
    states = ["recurrent_state_h", "recurrent_state_c"]
    left, whole = burnt_and_whole(LSTMModule(**given, burn_in=4), LSTMModule(**given), states)
    torch.testing.assert_close(left, whole)
