"""Trajectories that are kept whole, limited, cut and padded."""

import pytest
import torch

from rl_collect import Collector
from rl_envs import SerialEnv
from rl_envs.testing import CountingEnv, MultiAgentEnv
from rl_layout import Segments, check_layout


def test_a_trajectory_does_not_depend_on_the_size_of_the_batches(cart_poles, collected, sampled):
    options = {"total_frames": 240}
    one = collected(cart_poles(), sampled, frames_per_batch=240, **options)
    several = collected(cart_poles(), sampled, frames_per_batch=30, **options)
    assert len(several) == 8
    assert (torch.cat(several, -1) == one[0]).all()


def test_a_cut_at_the_end_of_a_batch_begins_new_trajectories_and_keeps_the_state(
    memory_policy, collected
):
    env = CountingEnv(max_steps=7)
    batches = collected(
        env, memory_policy(), frames_per_batch=3, total_frames=9, set_truncated=True
    )
    whole = torch.cat(batches)
    assert whole["next", "truncated"].flatten().tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert whole["next", "terminated"].flatten().tolist() == [0] * 6 + [1, 0, 0]
    assert whole["is_init"].flatten().tolist() == [1, 0, 0, 1, 0, 0, 1, 1, 0]
    assert whole["collector", "traj_step"].tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 1]
    assert len(whole["collector", "traj_ids"].unique()) == 4
    # the state is carried over the cuts, and starts anew at the reset
    assert whole["hidden"].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert not check_layout(whole).errors


def test_trajectories_can_be_limited(collected):
    batch = collected(
        CountingEnv(max_steps=9), frames_per_batch=5, total_frames=5, max_frames_per_traj=2
    )[0]
    assert batch["next", "truncated"].flatten().tolist() == [False, True, False, True, False]
    assert batch["collector", "traj_step"].tolist() == [0, 1, 0, 1, 0]


def test_complete_trajectories_are_returned_by_count(cart_poles, collected):
    batches = collected(cart_poles(), frames_per_batch=30, total_frames=900, trajs_per_batch=4)
    for batch in batches[:-1]:
        assert batch.ndim == 1
        assert len(Segments.of(batch)) == 4
        assert batch["next", "done"][-1].item()
        assert (batch["collector", "traj_step"] == Segments.of(batch).positions).all()
    rows = torch.cat(batches)
    keys = rows["collector", "traj_ids"] * 1000 + rows["collector", "traj_step"]
    assert len(keys.unique()) == len(keys)


def test_unfinished_trajectories_come_last_as_truncations():
    env = SerialEnv(2, [lambda: CountingEnv(3), lambda: CountingEnv(50)])
    options = {"frames_per_batch": 8, "total_frames": 24, "trajs_per_batch": 2}
    collector = Collector(env, **options)
    batches = list(collector)
    rows = torch.cat(batches)
    assert len(rows) == 24
    assert [len(Segments.of(batch)) for batch in batches] == [2, 2, 1]
    assert rows["observation"][-12:].flatten().tolist() == list(range(12))
    assert rows["next", "truncated"].flatten().tolist() == [False] * 23 + [True]
    following = collector.rollout()  # the environment continues, under a new id
    assert following["observation"][1].flatten().tolist() == [12, 13, 14, 15]
    assert following["is_init"][1, 0]
    assert following["collector", "traj_step"][1].tolist() == [0, 1, 2, 3]
    assert following["collector", "traj_ids"][1, 0] not in rows["collector", "traj_ids"]


def test_a_buffer_gets_whole_trajectories_and_the_rest_as_truncations(list_buffer):
    buffer, env = list_buffer(), SerialEnv(2, [lambda: CountingEnv(3), lambda: CountingEnv(50)])
    options = {"frames_per_batch": 8, "total_frames": 24, "trajs_per_batch": 1}
    collector = Collector(env, replay_buffer=buffer, **options)
    assert list(collector) == [None, None, None]
    assert [len(batch) for batch in buffer] == [3, 3, 6]
    collector.shutdown()
    assert buffer[-1]["observation"].flatten().tolist() == list(range(12))
    assert buffer[-1]["next", "truncated"].flatten().tolist() == [False] * 11 + [True]
    assert sum(len(batch) for batch in buffer) == 24


def test_unfinished_trajectories_are_cut_at_the_bound(list_buffer):
    buffer = list_buffer()
    collector = Collector(
        CountingEnv(max_steps=100),
        frames_per_batch=4,
        total_frames=16,
        trajs_per_batch=1,
        max_unfinished_frames=7,
        replay_buffer=buffer,
    )
    list(collector)
    collector.shutdown()
    rows = torch.cat(list(buffer))
    assert rows["observation"].flatten().tolist() == list(range(16))
    assert rows["next", "truncated"].flatten().nonzero().flatten().tolist() == [7, 15]
    assert rows["collector", "traj_step"].tolist() == [*range(8), *range(8)]
    assert rows["is_init"].flatten().nonzero().flatten().tolist() == [0, 8]
    assert not check_layout(rows).errors


def test_a_reset_between_batches_joins_no_two_trajectories():
    collector = Collector(
        CountingEnv(max_steps=5), frames_per_batch=3, total_frames=12, trajs_per_batch=1
    )
    assert collector.next()["observation"].flatten().tolist() == [0, 1, 2, 3, 4]
    collector.reset()
    piece, whole = collector.next(), collector.next()
    assert piece["observation"].flatten().tolist() == [0]
    assert piece["next", "truncated"].item()
    assert whole["observation"].flatten().tolist() == [0, 1, 2, 3, 4]


def test_trajectories_can_be_padded(collected):
    with pytest.warns(UserWarning, match="pads every batch"):
        batch = collected(CountingEnv(3), frames_per_batch=5, total_frames=5, split_trajs=True)[0]
    assert batch["collector", "mask"].tolist() == [[True] * 3, [True, True, False]]


@pytest.mark.parametrize("wanted", [{"trajs_per_batch": 3}, {"split_trajs": True}])
@pytest.mark.filterwarnings("ignore:split_trajs pads")
def test_groups_of_agents_keep_their_sizes(wanted):
    env = MultiAgentEnv(3, endings=[(2, "terminated")], batch_size=(1,))
    options = {"frames_per_batch": 5, **wanted}
    collector = Collector(env, **options)
    batches = [collector.next() for _ in range(2)]
    other = Collector(env, **options)
    other.load_state_dict(collector.state_dict())
    for batch in (*batches, other.next()):
        for group in (batch["agents"], batch["next", "agents"]):
            assert group.batch_size == (*batch.batch_size, 3)
            assert group.names == [*batch.names, None]
