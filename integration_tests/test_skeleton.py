"""The walking skeleton keeps the contract on data, and learns."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

from collections import deque

import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl_layout import Segments, check_layout, keys
from skeleton.buffer import ListBuffer
from skeleton.environments import CartPoleEnv, CountingEnv
from skeleton.gae import gae
from skeleton.gru import STATE, GRUAgent
from skeleton.ppo import ppo_loss, update
from skeleton.rows import Collector
from skeleton.segments import Marker, continues, markers, segment_ends
from skeleton.slices import sample_slices, stored_runs

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
ADDED_BY_SAMPLES = {
    keys.INDEX: (torch.int64, ()),
    keys.ROW: (torch.int64, ()),
    keys.SLICE_IDS: (torch.int64, ()),
}
MARKED_BY_SAMPLES = [keys.IS_INIT, keys.NEXT_DONE, keys.NEXT_TRUNCATED]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def agent(generator):
    return GRUAgent(2, 7, 3, generator)


@pytest.fixture
def collector(agent):
    """Two counting environments that are told apart by their episodes, one producer."""
    environments = [CountingEnv(ENDINGS), CountingEnv(ENDINGS[::-1], first_episode=100)]
    return Collector(environments, agent, agent.primer(), producer=6)


@pytest.fixture
def one_thread():
    """Keep torch to one thread: more only wait for each other in a loop over small rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def push_right(root):
    """Act without a network."""
    return root.set("action", torch.tensor(1))


def filled(collector, *lengths, capacity=64):
    """Store one batch after another."""
    buffer = ListBuffer(capacity)
    for length in lengths:
        buffer.extend(collector.collect(length))
    return buffer


def one_trajectory(num_steps):
    """Rows of one trajectory without an end, rewards 1, 2, 4, ..."""
    flags = torch.zeros(num_steps, 1, dtype=torch.bool)
    rows = TensorDict({}, [num_steps])
    rows[keys.IS_INIT] = flags.clone()
    rows[keys.NEXT_REWARD] = 2.0 ** torch.arange(num_steps).unsqueeze(-1)
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED):
        rows[key] = flags.clone()
    rows[keys.TRAJ_IDS] = torch.zeros(num_steps, dtype=torch.int64)
    rows[keys.TRAJ_STEP] = torch.arange(num_steps)
    return rows


def dtypes_and_shapes(rows):
    return {keys.as_key(k): (v.dtype, v.shape[rows.ndim :]) for k, v in keys.leaves(rows)}


def test_batch_has_every_marker_with_its_dtype_and_shape(collector):
    batch = collector.collect(5)

    assert batch.shape == (2, 5)
    assert batch.names[-1] == "time"
    assert dtypes_and_shapes(batch.exclude("sample_log_prob")) == CONTRACT


def test_sample_has_every_marker_with_its_dtype_and_shape(collector, generator):
    sample = sample_slices(filled(collector, 5), 3, 4, generator)

    assert sample.names == ["time"]
    assert dtypes_and_shapes(sample.exclude("sample_log_prob")) == CONTRACT | ADDED_BY_SAMPLES


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


def test_done_ends_an_n_step_row_only_at_its_last_step():
    rows = one_trajectory(4)
    rows[keys.NEXT_DONE] = torch.tensor([[False], [True], [True], [True]])
    rows[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[3], [3], [2], [1]])

    assert [marker.is_end for marker in markers(rows)] == [False, False, False, True]


def test_rl_layout_finds_the_same_segments_and_no_error(collector, generator):
    flat = collector.collect(9).reshape(-1)
    sample = sample_slices(filled(collector, 4, 9), 11, 3, generator)

    for rows in (flat, sample):
        assert not check_layout(rows).errors
        lasts = [i for i, ends in enumerate(segment_ends(rows)) if ends]
        assert Segments.of(rows).lasts.tolist() == lasts


def test_buffer_overwrites_the_oldest_row():
    buffer = ListBuffer(5)
    rows = one_trajectory(7)

    assert buffer.extend(rows[:4]) == [0, 1, 2, 3]
    assert len(buffer) == 4
    assert buffer.extend(rows[4:]) == [4, 0, 1]
    assert len(buffer) == 5
    read = buffer.read([0, 1, 2, 3, 4])
    assert read[keys.TRAJ_STEP].tolist() == [5, 6, 2, 3, 4]
    assert read[keys.ROW].tolist() == [5, 6, 2, 3, 4]
    assert read[keys.INDEX].tolist() == [0, 1, 2, 3, 4]


def test_buffer_and_its_input_do_not_share_memory():
    buffer, rows = ListBuffer(5), one_trajectory(3)
    before = rows.clone()
    buffer.extend(rows)
    buffer.read([1])[keys.NEXT_REWARD].zero_()
    assert (rows == before).all()
    assert set(rows.keys(True, True)) == set(before.keys(True, True))

    rows[keys.NEXT_REWARD].zero_()
    assert buffer.read([0, 1, 2])[keys.NEXT_REWARD].flatten().tolist() == [1, 2, 4]


def test_buffer_refuses_more_rows_than_it_holds():
    with pytest.raises(ValueError, match="6 rows do not fit a capacity of 5"):
        ListBuffer(5).extend(one_trajectory(6))


def test_runs_are_whole_trajectories_over_batch_cuts_of_two_environments(collector):
    buffer = filled(collector, 4, 6)

    runs = [buffer.read(run)["observation"].int().tolist() for run in stored_runs(buffer)]
    # each run is [episode, first step, last step + 1]; the last one of each continues
    played = [(0, 3), (1, 5), (2, 1), (3, 1), (100, 2), (101, 1), (102, 5), (103, 2)]
    assert sorted(runs) == [[[e, step] for step in range(length)] for e, length in played]


def test_run_begins_where_the_ring_has_overwritten_its_first_rows():
    buffer = ListBuffer(5)
    buffer.extend(one_trajectory(7)[:4])
    buffer.extend(one_trajectory(7)[4:])

    assert stored_runs(buffer) == [[2, 3, 4, 0, 1]]


def test_runs_of_stored_samples_end_where_their_slices_were_cut():
    rows = one_trajectory(6)
    rows[keys.NEXT_DONE][2] = True
    rows[keys.IS_INIT][4] = True
    buffer = ListBuffer(9)
    buffer.extend(rows)

    assert stored_runs(buffer) == [[0, 1, 2], [3], [4, 5]]


def test_padding_is_in_no_run():
    rows = one_trajectory(6)
    rows[keys.MASK] = torch.tensor([True, True, False, False, True, True])
    rows[keys.TRAJ_IDS][2:4] = keys.PADDING_ID
    buffer = ListBuffer(9)
    buffer.extend(rows)

    assert stored_runs(buffer) == [[0, 1], [4, 5]]


def test_slices_never_cross_a_boundary(collector, generator):
    buffer = filled(collector, 4, 9, 2, capacity=26)

    sample = sample_slices(buffer, 50, 3, generator)
    for number in range(50):
        part = sample[sample[keys.SLICE_IDS] == number]
        assert 1 <= len(part) <= 3
        steps = part[keys.TRAJ_STEP] - part[keys.TRAJ_STEP][0]
        assert steps.tolist() == list(range(len(part)))
        assert part["observation"][:, 0].unique().numel() == 1
        assert part[keys.TRAJ_IDS].unique().numel() == 1


def test_slices_reproduce_stored_rows_and_leave_them_as_they_are(collector, generator):
    buffer = filled(collector, 4, 9)
    before = buffer.read(list(range(26)))

    sample = sample_slices(buffer, 20, 4, generator)
    after = buffer.read(list(range(26)))
    assert (after == before).all()
    stored = before[sample[keys.INDEX]].exclude(*MARKED_BY_SAMPLES)
    assert (sample.exclude(*MARKED_BY_SAMPLES, keys.SLICE_IDS) == stored).all()


def test_slices_are_marked_where_they_are_cut(collector, generator):
    buffer = filled(collector, 4, 9)
    sample = sample_slices(buffer, 20, 4, generator)
    stored = buffer.read(sample[keys.INDEX].tolist())

    changes = sample[keys.SLICE_IDS].diff() != 0
    edge = torch.tensor([True])
    starts = torch.cat([edge, changes]).unsqueeze(-1)
    ends = torch.cat([changes, edge]).unsqueeze(-1)
    terminated = stored[keys.NEXT_TERMINATED]
    assert terminated.any()
    assert torch.equal(sample[keys.IS_INIT], starts | stored[keys.IS_INIT])
    assert torch.equal(sample[keys.NEXT_TERMINATED], terminated)
    assert torch.equal(sample[keys.NEXT_TRUNCATED], ends & ~terminated)
    assert torch.equal(sample[keys.NEXT_DONE], ends)
    assert torch.equal(torch.tensor(segment_ends(sample)), ends[:, 0])


def test_replay_equals_the_steps_that_were_played(collector, agent):
    collector.collect(4)  # so that the rows begin in the middle of trajectories
    rows = collector.collect(9).reshape(-1)
    assert not rows[keys.IS_INIT][0]

    states = agent.unroll(rows)
    assert_close(states, rows["next", STATE])
    log_probs = agent.actor(states).log_softmax(-1)
    assert_close(log_probs.gather(-1, rows["action"][:, None])[:, 0], rows["sample_log_prob"])


def test_replay_of_slices_equals_the_steps_that_were_played(collector, agent, generator):
    sample = sample_slices(filled(collector, 4, 9), 11, 3, generator)

    assert_close(agent.unroll(sample), sample["next", STATE])


def test_segment_starts_from_the_state_stored_in_its_first_row(collector, agent):
    rows = collector.collect(9)[0]
    starts = rows[keys.IS_INIT][:, 0]
    rows[STATE][starts] = 0.5

    states = agent.unroll(rows)
    assert_close(states[starts], agent.cell(rows["observation"][starts], rows[STATE][starts]))


def test_gradient_goes_back_to_the_start_of_the_segment_and_no_further(collector, agent):
    rows = collector.collect(9)[0]
    rows["observation"].requires_grad_()

    agent.unroll(rows)[6].sum().backward()
    # row 6 is step 3 of the second episode, whose first row is row 3
    assert rows[keys.TRAJ_STEP].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    reached = rows["observation"].grad.any(-1)
    assert reached.tolist() == [False] * 3 + [True] * 4 + [False] * 2


def test_next_values_are_of_the_real_next_observation(collector, agent):
    rows = collector.collect(9).reshape(-1)

    value, next_value = agent.values(rows)
    after = agent.cell(rows["next", "observation"], rows["next", STATE])
    assert_close(next_value, agent.critic(after))
    assert_close(value, agent.critic(rows["next", STATE]))


# rewards 1, 2, 4; every value is 1, and that of the last next observation is 8; γ = λ = ½
# terminated: δ = 1 + ½ - 1, 2 + ½ - 1, 4 - 1           A = ½ + 2.25/4, 1.5 + 3/4, 3
# going on:   δ = 1 + ½ - 1, 2 + ½ - 1, 4 + 8/2 - 1     A = ½ + 3.25/4, 1.5 + 7/4, 7
TERMINATED = [1.0625, 2.25, 3.0]
GOING_ON = [1.3125, 3.25, 7.0]


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (keys.NEXT_TERMINATED, TERMINATED),
        (keys.NEXT_TRUNCATED, GOING_ON),
        (None, GOING_ON),
    ],
)
def test_gae_of_each_ending(ending, expected):
    first, second = one_trajectory(3), one_trajectory(3)
    if ending is not None:
        first[ending][-1] = first[keys.NEXT_DONE][-1] = True
    second[keys.TRAJ_IDS] += 1
    value, next_value = torch.ones(6, 1), torch.tensor([[1.0], [1.0], [8.0]]).repeat(2, 1)

    advantage, target = gae(torch.cat([first, second]), value, next_value, 0.5, 0.5)
    # the batch ends in the middle of the second
    assert advantage.flatten().tolist() == expected + GOING_ON
    assert torch.equal(target, advantage + 1)


def test_gae_leaves_out_a_row_without_its_next_observation():
    rows = one_trajectory(3)
    rows[keys.NEXT_MISSING] = torch.tensor([False, False, True])
    next_value = torch.tensor([[1.0], [1.0], [float("nan")]])

    advantage, _ = gae(rows, torch.ones(3, 1), next_value, 0.5, 0.5)
    # as after a cut after the second row: A = ½ + 1.5/4, 1.5
    assert advantage.flatten().tolist() == [0.875, 1.5, 0.0]


@pytest.mark.parametrize(("key", "left_out"), [(keys.MASK, False), (keys.NEXT_MISSING, True)])
def test_loss_is_over_real_steps_only(collector, agent, generator, key, left_out):
    rows = collector.collect(9).reshape(-1)
    rows["advantage"] = torch.randn(18, 1, generator=generator)
    rows["value_target"] = torch.randn(18, 1, generator=generator)
    expected = ppo_loss(agent, rows[:13])

    rows["advantage"][13:] = rows["value_target"][13:] = float("nan")
    rows[key] = torch.full((18,), not left_out)
    rows[key][13:] = left_out
    assert_close(ppo_loss(agent, rows), expected)


def test_loss_clips_the_gain(collector, agent):
    rows = collector.collect(2).reshape(-1)
    rows["advantage"] = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    rows["value_target"] = agent.values(rows)[0].detach()
    # the actions are now e² times as likely as when they were drawn
    rows["sample_log_prob"] = rows["sample_log_prob"] - 2

    loss = ppo_loss(agent, rows)
    log_probs = agent.actor(agent.unroll(rows)).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    # advantages over their deviation √(4/3); the good ones gain 1.2, the bad ones cost e²
    gain = (1.2 - torch.e**2) / 2 / (4 / 3) ** 0.5
    assert_close(loss, -gain - 0.01 * entropy, check_dtype=False)


def mean_return(batches):
    """Mean over the episodes that ended: a step of CartPole is worth 1, so a length is a return."""
    rows = torch.cat(list(batches), 1)
    return float((rows[keys.TRAJ_STEP][rows[keys.NEXT_DONE][..., 0]] + 1).float().mean())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_ppo_learns_cartpole(generator):
    environments = [CartPoleEnv(seed) for seed in range(8)]
    agent = GRUAgent(4, 32, 2, generator)

    def act_at_random(root):
        return root.set("action", torch.randint(2, (), generator=generator))

    random = mean_return([Collector(environments, act_at_random, TensorDict()).collect(200)])
    collector = Collector(environments, agent, agent.primer())
    buffer = ListBuffer(8 * 64)
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-3)
    latest = deque(maxlen=5)
    for _ in range(40):
        latest.append(collector.collect(64))
        buffer.extend(latest[-1])
        for _ in range(12):
            update(agent, optimizer, sample_slices(buffer, 8, 48, generator))
        collector.policy_version += 1
        # enough is enough: what is slow on a slow core stops as early as it can
        if len(latest) == 5 and mean_return(latest) > 3 * random:
            break

    assert 15 < random < 30
    assert mean_return(latest) > 3 * random
