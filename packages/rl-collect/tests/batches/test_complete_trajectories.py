"""Whole trajectories, against lists of rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_collect import WholeTrajectories
from rl_collect.batches.complete_trajectories import TrajectoryQueue, truncate_rows
from rl_layout import Segments, check_layout
from rl_layout.synthetic import trajectories


def batch_of(over, start):
    """Rows [B, T] whose value says who they are: environment and time."""
    num_envs, num_steps = over.shape
    value = torch.arange(num_envs).unsqueeze(1) * 1000 + start + torch.arange(num_steps)
    flag = over.unsqueeze(-1)
    after = TensorDict(
        {"done": flag, "terminated": flag, "truncated": torch.zeros_like(flag)}, over.shape
    )
    return TensorDict({"value": value, "next": after}, over.shape)


@given(st.data())
def test_no_row_is_lost_and_none_is_handed_out_twice(data):
    num_envs = data.draw(st.integers(1, 4))
    whole, start = WholeTrajectories(num_envs), 0
    open_rows, ended = [[] for _ in range(num_envs)], []
    for num_steps in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6)):
        size = num_envs * num_steps
        flags = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
        over = torch.tensor(flags).reshape(num_envs, num_steps)
        expected = []
        for b in range(num_envs):
            for t in range(num_steps):
                open_rows[b].append(b * 1000 + start + t)
                if over[b, t]:
                    expected += open_rows[b]
                    open_rows[b] = []
        found = whole.take(batch_of(over, start))
        assert found["value"].tolist() == expected
        assert whole.held == sum(map(len, open_rows))
        assert whole.lengths.tolist() == [len(rows) for rows in open_rows]
        ended += expected
        start += num_steps
    assert whole.cut()["value"].tolist() == [value for rows in open_rows for value in rows]
    assert whole.held == 0


def test_a_cut_piece_is_a_truncation_and_the_others_stay():
    whole = WholeTrajectories(2)
    whole.take(batch_of(torch.zeros(2, 3, dtype=torch.bool), 0))
    piece = whole.cut(torch.tensor([False, True]))
    assert piece["value"].tolist() == [1000, 1001, 1002]
    assert piece["next", "truncated"].flatten().tolist() == [False, False, True]
    assert piece["next", "done"].flatten().tolist() == [False, False, True]
    assert not piece["next", "terminated"].any()
    assert whole.lengths.tolist() == [3, 0]


def test_the_longest_pieces_are_cut_at_the_bound():
    whole = WholeTrajectories(3, max_held=6)
    over = torch.zeros(3, 5, dtype=torch.bool)
    over[0, 3] = over[2, 1] = True  # 1, 5 and 3 rows are left
    whole.take(batch_of(over, 0))
    assert whole.over_bound().tolist() == [False, True, False]
    whole.cut(whole.over_bound())
    assert whole.held == 4
    assert not whole.over_bound().any()


def test_complete_trajectories_obey_the_layout_and_own_their_memory():
    batch = trajectories([3, 4, 2])
    before = batch.clone()
    whole = WholeTrajectories(1)
    first = whole.take(batch[:5])
    second = whole.take(batch[5:])
    first["observation"].zero_()
    assert (batch == before).all()
    assert Segments.of(second).lengths.tolist() == [4, 2]
    assert not check_layout(second).findings
    assert second.names == ["time"]


def test_flags_of_nested_groups_are_cut_as_well():
    flag = torch.zeros(2, 3, 1, dtype=torch.bool)
    ended = flag.clone()
    ended[1, 2] = True
    group = {"done": ended.clone(), "terminated": ended, "truncated": flag.clone()}
    batch = TensorDict({"next": {"agents": group}}, [2])
    truncate_rows(batch, torch.tensor([False, True]))
    assert batch["next", "agents", "truncated"].flatten().tolist() == [False] * 3 + [True] * 2 + [
        False
    ]
    assert batch["next", "agents", "done"][1].all()


def test_a_saved_state_holds_the_same_rows():
    batch, whole, other = trajectories([3, 4]), WholeTrajectories(1), WholeTrajectories(1)
    whole.take(batch[:5])
    other.load_state_dict(whole.state_dict())
    assert (other.take(batch[5:]) == whole.take(batch[5:])).all()


def test_bad_input_is_refused():
    whole = WholeTrajectories(2)
    with pytest.raises(ValueError, match="expected 2 environments"):
        whole.take(trajectories([3]))
    with pytest.raises(ValueError, match="at least 1"):
        WholeTrajectories(1, max_held=0)
    whole = WholeTrajectories(1)
    whole.take(trajectories([3])[:2])
    with pytest.raises(KeyError, match="action"):
        whole.take(trajectories([3])[:2].exclude("action"))


def test_what_is_held_and_what_waits_keep_the_sizes_of_groups_when_they_are_saved():
    batch = trajectories([3, 4])
    batch["agents"] = TensorDict({"seen": torch.zeros(7, 2, 5)}, [7, 2])
    whole, queue = WholeTrajectories(1), TrajectoryQueue()
    queue.push(whole.take(batch[:5]))
    other, waiting = WholeTrajectories(1), TrajectoryQueue()
    other.load_state_dict(whole.state_dict())
    waiting.load_state_dict(queue.state_dict())
    assert other.cut()["agents"].batch_size == (2, 2)
    assert waiting.pop(1)["agents"].batch_size == (3, 2)
