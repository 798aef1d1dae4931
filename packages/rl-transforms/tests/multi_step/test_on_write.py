from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_transforms import Compose, MultiStepTransform, NextObservationDelta, multi_step, reference


def by_step(rows):
    """Rows in the order of (id, step), as plain leaves."""
    order = torch.argsort(rows[keys.TRAJ_IDS] * 1000 + rows[keys.TRAJ_STEP])
    return rows[order]


@st.composite
def deliveries(draw):
    """Pieces of several producers' rows, in the order of each and mixed among them."""
    kinds = st.lists(st.sampled_from(list(EndKind)), min_size=3, max_size=3)
    producers = [
        trajectories(
            draw(st.lists(st.integers(1, 6), min_size=3, max_size=3)), draw(kinds), first_id=100 * p
        )
        for p in (1, 2, 3)
    ]
    pieces = []
    while any(len(rows) for rows in producers):
        p = draw(st.sampled_from([p for p, rows in enumerate(producers) if len(rows)]))
        size = draw(st.integers(1, 5))
        pieces.append(producers[p][:size])
        producers[p] = producers[p][size:]
    return pieces


@given(deliveries(), st.integers(1, 5))
def test_rows_equal_those_of_whole_trajectories_for_any_producers(same, pieces, n_steps):
    ahead = MultiStepTransform(n_steps, 0.9, patience=99)
    passed = [ahead.inv(piece.clone()) for piece in pieces] + [ahead.flush()]
    passed = torch.cat([rows for rows in passed if rows is not None])
    whole = by_step(torch.cat(pieces))
    same(by_step(passed), reference.multi_step(whole, 0.9, n_steps))
    assert ahead.held is None


@settings(max_examples=15)  # a plain twin over all rows after each delivery
@given(deliveries(), st.integers(1, 5))
def test_held_rows_are_at_most_those_of_open_trajectories(pieces, n_steps):
    ahead, seen = MultiStepTransform(n_steps, 0.9, patience=99), []
    for piece in pieces:
        ahead.inv(piece)
        seen.append(piece)
        rows = by_step(torch.cat(seen))
        far = reference.multi_step(rows, 0.9, n_steps)
        short = (far[keys.STEPS_TO_NEXT_OBS] < n_steps).squeeze(-1)
        waits = short & ~far[keys.NEXT_DONE].squeeze(-1)
        assert len(ahead.held if ahead.held is not None else ()) == int(waits.sum())


@settings(max_examples=15)
@given(deliveries(), st.integers(17, 30))
def test_n_beyond_every_trajectory_spans_its_whole_rest(same, pieces, n_steps):
    ahead = MultiStepTransform(n_steps, 0.9, patience=99)
    passed = [ahead.inv(piece) for piece in pieces] + [ahead.flush()]
    passed = torch.cat([rows for rows in passed if rows is not None])
    whole = by_step(torch.cat(pieces))
    same(by_step(passed), reference.multi_step(whole, 0.9, n_steps))


@pytest.mark.parametrize("n_steps", [3, 20])
def test_infinite_reward_does_not_leave_its_trajectory(n_steps):
    rows = trajectories([2, 25])
    rows[keys.NEXT_REWARD][:2] = float("inf")
    made = MultiStepTransform(n_steps, 0.9).inv(torch.cat([rows[2:], rows[:2]]))
    assert made[keys.NEXT_REWARD].isfinite().flatten().tolist() == [True] * 25 + [False] * 2


def test_rewards_of_agents_are_summed_separately(same):
    rows = trajectories([5, 4], EndKind.CUT)
    rows["next", "agents", "reward"] = torch.randn(9, 3, 1, dtype=torch.float64)
    names = ["reward", ("agents", "reward")]
    whole = multi_step(rows, 0.9, 3, names)
    ahead = MultiStepTransform(3, 0.9, reward_keys=names)
    ahead.inv(rows[:4])
    ahead.inv(rows[4:])
    last = ahead.flush()
    chosen = [3, 4, 7, 8]
    assert last[keys.TRAJ_STEP].tolist() == [3, 4, 2, 3]
    same(last, whole[chosen])


def test_rows_keep_their_order_of_arrival():
    batch = environments(3, 5, [9], [EndKind.TERMINATED])
    made = MultiStepTransform(2, 0.9).inv(batch.transpose(0, 1))
    assert made[keys.TRAJ_STEP].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_rows_are_returned_only_when_complete():
    ahead = MultiStepTransform(3, 0.9)
    rows = trajectories([5])
    assert ahead.inv(rows[:2]) is None
    assert len(ahead.inv(rows[2:3])) == 1
    assert len(ahead.inv(rows[3:])) == 4
    assert ahead.flush() is None


def test_missing_step_ends_the_span_of_earlier_rows():
    rows = trajectories([6], EndKind.CUT)
    ahead = MultiStepTransform(3, 0.9)
    ahead.inv(rows[:2])
    made = ahead.inv(rows[4:])  # steps 2 and 3 were lost
    assert made[keys.STEPS_TO_NEXT_OBS].flatten().tolist() == [2, 1]
    assert ahead.held[keys.TRAJ_STEP].tolist() == [4, 5]


def test_padding_is_dropped():
    batch = environments(2, 4, [4], [EndKind.TERMINATED])
    batch[keys.MASK] = torch.tensor([[True] * 4, [True, True, False, False]])
    ahead = MultiStepTransform(2, 0.9)
    made = ahead.inv(batch)
    assert made.batch_size == (5,)
    assert len(ahead.held) == 1
    assert keys.MASK not in made.keys(True)
    batch[keys.TRAJ_IDS][1] = -1
    assert MultiStepTransform(2, 0.9).inv(batch).batch_size == (4,)
    assert MultiStepTransform(2, 0.9).inv(batch[1:]) is None


def test_held_rows_are_in_the_state_dict(same):
    rows, one, other = trajectories([6]), MultiStepTransform(3, 0.9), MultiStepTransform(3, 0.9)
    one.inv(rows[:4])
    other.load_state_dict(one.state_dict())
    same(other.inv(rows[4:]), one.inv(rows[4:]))
    empty = MultiStepTransform(3, 0.9)
    other.load_state_dict(empty.state_dict())
    assert other.held is None


def test_forward_returns_samples_unchanged():
    rows = trajectories([6])
    assert MultiStepTransform(3, 0.9)(rows) is rows


def test_deltas_are_rebuilt_before_rows_are_extended(same):
    rows = trajectories([6])
    small = NextObservationDelta(["observation"]).rows(rows)
    both = Compose(MultiStepTransform(3, 0.9), NextObservationDelta(side="rebuild"))
    same(both.inv(small), MultiStepTransform(3, 0.9).inv(rows))
    assert both.side == "write"
    with pytest.raises(ValueError, match=r"NextObservationDelta\(side="):
        MultiStepTransform(3, 0.9).inv(small)


def test_invalid_horizons_and_rows_with_other_keys_are_refused():
    ahead, rows = MultiStepTransform(3, 0.9), trajectories([6])
    ahead.inv(rows[:2])
    with pytest.raises(ValueError, match=r"differ from those .*action"):
        ahead.inv(rows[2:].exclude("action"))
    with pytest.raises(ValueError, match="n_steps"):
        MultiStepTransform(0, 0.9)
    with pytest.raises(ValueError, match="cannot sit in"):
        ahead.check_place("environment")


def test_markers_of_a_wrong_dtype_or_shape_are_refused():
    rows = trajectories([6])
    with pytest.raises(TypeError, match=r"is_init.*expected torch.bool, got torch.uint8"):
        MultiStepTransform(3, 0.9).inv(rows.clone().set("is_init", rows["is_init"].byte()))
    wrong = rows.clone().set(keys.TRAJ_STEP, rows[keys.TRAJ_STEP][:, None])
    with pytest.raises(ValueError, match=r"traj_step.*expected shape \[6\], got \[6, 1\]"):
        MultiStepTransform(3, 0.9).inv(wrong)


def test_rows_unlike_the_held_ones_are_refused(same):
    rows, ahead = trajectories([6]), MultiStepTransform(3, 0.9)
    ahead.inv(rows[:2])
    with pytest.raises(ValueError, match=r"observation.*float32.*float64"):
        ahead.inv(rows[2:].clone().set("observation", rows["observation"][2:].double()))
    wider = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"observation.*\[2\].*\[3\]"):
        ahead.inv(rows[2:].clone().set("observation", wider))
    same(ahead.inv(rows[2:]), multi_step(rows, 0.9, 3))  # a refusal loses nothing


def of_producer(number, rows):
    return rows.clone().set(keys.TRAJ_IDS, rows[keys.TRAJ_IDS] + (number << 32))


def test_trajectory_without_new_rows_counts_as_cut():
    ahead = MultiStepTransform(3, 0.9, patience=2)
    given_up = of_producer(1, trajectories([4], EndKind.CUT))
    assert len(ahead.inv(given_up)) == 2
    for turn in range(4):  # calls of another producer do not count
        ahead.inv(of_producer(2, trajectories([3], first_id=50 + turn)))
    assert len(ahead.held) == 2
    assert len(ahead.inv(of_producer(1, trajectories([3], first_id=60)))) == 3
    made = ahead.inv(of_producer(1, trajectories([3], first_id=70)))
    assert made[keys.TRAJ_STEP].tolist() == [2, 3, 0, 1, 2]
    assert made[keys.STEPS_TO_NEXT_OBS].flatten().tolist() == [2, 1, 3, 2, 1]
    assert not made[keys.NEXT_DONE][:2].any()
    assert ahead.held is None


def test_trajectory_with_rare_rows_is_not_cut():
    ahead, rows = MultiStepTransform(5, 0.9, patience=1), trajectories([7], EndKind.CUT)
    assert all(ahead.inv(row) is None for row in rows[:4].split(1))
    assert ahead.inv(rows[4:5])[keys.STEPS_TO_NEXT_OBS].item() == 5


def test_held_rows_do_not_grow_with_resets(same):
    ahead = MultiStepTransform(3, 0.9, patience=4)
    for turn in range(40):
        ahead.inv(trajectories([5, 5], EndKind.CUT, first_id=10 * turn))
        assert ahead.held is None or len(ahead.held) <= 4 * 4
    same(
        ahead.flush()[-4:],
        multi_step(trajectories([5, 5], EndKind.CUT, first_id=390), 0.9, 3)[[3, 4, 8, 9]],
    )


def test_waiting_times_are_in_the_state_dict():
    one, other = (MultiStepTransform(3, 0.9, patience=2) for _ in range(2))
    one.inv(trajectories([4], EndKind.CUT))
    one.inv(trajectories([2], first_id=50))
    other.load_state_dict(one.state_dict())
    made = other.inv(trajectories([2], first_id=60))
    assert made[keys.TRAJ_STEP].tolist() == [2, 3, 0, 1]
    with pytest.raises(ValueError, match="same columns="):
        MultiStepTransform(3, 0.9, columns=True).load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="patience: expected at least 1"):
        MultiStepTransform(3, 0.9, patience=0)


def test_missing_next_observation_is_marked_on_rows_that_target_it():
    rows = trajectories([4])
    rows[keys.NEXT_MISSING] = torch.tensor([False, True, False, False])
    assert MultiStepTransform(2, 0.5).inv(rows)[keys.NEXT_MISSING].tolist() == [True] + [False] * 3


@pytest.mark.parametrize("flag", [keys.IS_INIT, keys.NEXT_DONE])
def test_marker_cuts_a_trajectory_with_continuous_ids_and_steps(flag):
    rows = trajectories([6], EndKind.CUT)
    rows[flag][3 if flag == keys.IS_INIT else 2] = True
    for pieces in ([6], [3, 3]):
        ahead = MultiStepTransform(3, 0.9)
        made = [ahead.inv(piece) for piece in rows.split(pieces)] + [ahead.flush()]
        steps = by_step(torch.cat([one for one in made if one is not None]))
        assert steps[keys.STEPS_TO_NEXT_OBS].flatten().tolist() == [3, 2, 1, 3, 2, 1]
