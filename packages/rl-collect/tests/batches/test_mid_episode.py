"""Trajectories that begin in the middle of an episode say so."""

from __future__ import annotations

import torch

from rl_collect import Collector
from rl_envs.testing import CountingEnv

MID_EPISODE = ("collector", "mid_episode")


def test_the_first_step_behind_a_cut_is_marked_where_the_environment_went_on():
    options = {"frames_per_batch": 3, "total_frames": 12, "set_truncated": True}
    batch = torch.cat(list(Collector(CountingEnv(6), **options)))
    assert batch[MID_EPISODE].nonzero().flatten().tolist() == [3, 9]  # step 6 follows a reset
    assert batch["is_init"].flatten().nonzero().flatten().tolist() == [0, 3, 6, 9]


def test_a_reset_after_a_cut_begins_an_episode():
    collector = Collector(CountingEnv(9), frames_per_batch=3, set_truncated=True)
    collector.next()
    collector.reset()
    assert not collector.next()[MID_EPISODE].any()
    assert collector.next()[MID_EPISODE].tolist() == [True, False, False]


def test_trajectories_longer_than_the_bound_go_on_in_the_middle():
    collector = Collector(
        CountingEnv(7), frames_per_batch=2, trajs_per_batch=2, max_unfinished_frames=3
    )
    batch = collector.next()
    starts = batch[batch["is_init"].flatten()]
    assert starts["observation"].flatten().tolist() == [0, 4]
    assert starts[MID_EPISODE].tolist() == [False, True]


def test_a_collector_that_never_cuts_writes_no_mark():
    assert MID_EPISODE not in Collector(CountingEnv(3), frames_per_batch=4).next().keys(True)


def test_a_resumed_collector_marks_the_same_step():
    def made():
        return Collector(CountingEnv(9), frames_per_batch=3, set_truncated=True)

    one, other = made(), made()
    one.next()
    other.load_state_dict(one.state_dict())
    assert other.next()[MID_EPISODE].tolist() == [True, False, False]
