"""The rows of the walking skeleton keep the contract on data."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl_layout import Segments, check_layout, keys
from skeleton.environments import CartPoleEnv, CountingEnv
from skeleton.gru import STATE
from skeleton.rows import Collector
from skeleton.segments import Marker, continues, markers, segment_ends
from skeleton.slices import sample_slices

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated"), (2, "truncated")]

CONTRACT = {
    "observation": (torch.float32, (2,)),
    "action": (torch.int64, ()),
    "recurrent_state": (torch.float32, (7,)),
    keys.IS_INIT: (torch.bool, (1,)),
    ("next", "observation"): (torch.float32, (2,)),
    ("next", "recurrent_state"): (torch.float32, (7,)),
    keys.NEXT_REWARD: (torch.float32, (1,)),
    keys.NEXT_DONE: (torch.bool, (1,)),
    keys.NEXT_TERMINATED: (torch.bool, (1,)),
    keys.NEXT_TRUNCATED: (torch.bool, (1,)),
    keys.TRAJ_IDS: (torch.int64, ()),
    keys.TRAJ_STEP: (torch.int64, ()),
    keys.POLICY_VERSION: (torch.int64, ()),
}


def push_right(root):
    """Act without a network."""
    return root.set("action", torch.tensor(1))


def test_batch_has_every_marker_with_its_dtype_and_shape(collector, dtypes_and_shapes):
    batch = collector.collect(5)

    assert batch.shape == (2, 5)
    assert batch.names[-1] == "time"
    assert dtypes_and_shapes(batch.exclude("sample_log_prob")) == CONTRACT


def test_markers_are_the_trajectories_that_were_played():
    collector = Collector([CountingEnv(ENDINGS)], push_right, TensorDict(), producer=6)
    batches = [collector.collect(4)[0], collector.collect(5)[0]]

    def column(key):
        return [batch[key].flatten().tolist() for batch in batches]

    # 3 steps terminated | 5 truncated, over the cut of the batch | 1 terminated
    no, yes = False, True
    assert column(keys.IS_INIT) == [[yes, no, no, yes], [no, no, no, no, yes]]
    assert column(keys.NEXT_TERMINATED) == [[no, no, yes, no], [no, no, no, no, yes]]
    assert column(keys.NEXT_TRUNCATED) == [[no, no, no, no], [no, no, no, yes, no]]
    assert column(keys.NEXT_DONE) == [[no, no, yes, no], [no, no, no, yes, yes]]
    assert column(keys.TRAJ_STEP) == [[0, 1, 2, 0], [1, 2, 3, 4, 0]]
    first = 6 << 32
    ids = [[first, first, first, first + 1], [first + 1] * 4 + [first + 2]]
    assert column(keys.TRAJ_IDS) == ids
    assert column(keys.NEXT_REWARD) == [[1, 2, 3, 1], [2, 3, 4, 5, 1]]


def test_next_observation_is_the_true_one_for_every_row(collector):
    batches = [collector.collect(length) for length in (4, 1, 9)]

    rows = torch.cat(batches, 1)
    assert_close(rows["next", "observation"], rows["observation"] + torch.tensor([0.0, 1.0]))
    assert_close(rows["observation"][..., 1], rows[keys.TRAJ_STEP].float())
    assert rows[keys.NEXT_TRUNCATED].any()
    assert rows[keys.NEXT_TERMINATED].any()


def test_cartpole_next_observation_is_the_next_root():
    collector = Collector([CartPoleEnv(3)], push_right, TensorDict(), producer=6)

    rows = torch.cat([collector.collect(13), collector.collect(17)], 1)[0]
    inner = ~torch.tensor(segment_ends(rows))[:-1]
    assert torch.equal(rows["next", "observation"][:-1][inner], rows["observation"][1:][inner])
    assert torch.equal(rows[keys.IS_INIT][1:], rows[keys.NEXT_DONE][:-1])


def test_recurrent_state_starts_from_the_primer_and_is_carried_across_batches(collector, agent):
    rows = torch.cat([collector.collect(4), collector.collect(6)], 1)

    starts = rows[keys.IS_INIT][..., 0]
    assert not rows[STATE][starts].any()
    carried = rows[STATE][:, 1:] == rows["next", STATE][:, :-1]
    assert torch.equal(carried.all(-1), ~starts[:, 1:])


def test_recurrent_policy_without_its_primer_is_refused(agent):
    with pytest.raises(KeyError, match="recurrent_state"):
        Collector([CountingEnv(ENDINGS)], agent, TensorDict()).collect(1)


def test_two_producers_never_share_an_id():
    collectors = [Collector([CountingEnv(ENDINGS)], push_right, TensorDict()) for _ in range(2)]

    first, second = (set(c.collect(9)[keys.TRAJ_IDS].flatten().tolist()) for c in collectors)
    assert not first & second
    assert all(number >= 0 for number in first | second)
    assert len({number >> 32 for number in first}) == 1


def test_policy_version_is_the_one_that_acted(collector):
    before = collector.collect(2)
    collector.policy_version += 1
    after = collector.collect(3)

    assert before[keys.POLICY_VERSION].tolist() == [[0, 0]] * 2
    assert after[keys.POLICY_VERSION].tolist() == [[1, 1, 1]] * 2


def test_step_leaves_its_root_as_it_was():
    environment = CountingEnv(ENDINGS)
    root = environment.reset()
    environment.step(root)

    assert list(root.keys()) == ["observation"]
    assert root["observation"].tolist() == [0, 0]


STEP = Marker(traj_id=4, traj_step=2, is_init=False, is_end=False, is_real=True)


def test_the_step_after_continues():
    assert continues(STEP, STEP._replace(traj_step=3))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"traj_id": 5}),
        ({}, {"traj_step": 2}),
        ({}, {"traj_step": 4}),
        ({}, {"is_init": True}),
        ({"is_end": True}, {}),
        ({"is_real": False}, {}),
        ({}, {"is_real": False}),
    ],
)
def test_any_marker_cuts(before, after):
    assert not continues(STEP._replace(**before), STEP._replace(**{"traj_step": 3} | after))


def test_done_ends_an_n_step_row_only_at_its_last_step(one_trajectory):
    rows = one_trajectory(4)
    rows[keys.NEXT_DONE] = torch.tensor([[False], [True], [True], [True]])
    rows[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[3], [3], [2], [1]])

    assert [marker.is_end for marker in markers(rows)] == [False, False, False, True]


def test_rl_layout_finds_the_same_segments_and_no_error(collector, generator, filled):
    flat = collector.collect(9).reshape(-1)
    sample = sample_slices(filled(collector, 4, 9), 11, 3, generator)

    for rows in (flat, sample):
        assert not check_layout(rows).errors
        lasts = [i for i, ends in enumerate(segment_ends(rows)) if ends]
        assert Segments.of(rows).lasts.tolist() == lasts
