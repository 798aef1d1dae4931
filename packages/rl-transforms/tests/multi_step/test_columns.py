from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_transforms import MultiStepTransform, multi_step

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED]


def same(one, other):
    names = set(one.keys(True, True))
    assert names == set(other.keys(True, True))
    for name in names:
        torch.testing.assert_close(one[name], other[name], msg=str(name))


def columns(n_steps):
    return MultiStepTransform(n_steps, 0.9, columns=True)


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_columns_do_not_depend_on_the_cuts_of_calls(lengths, widths, n_steps):
    batch = environments(3, sum(widths), lengths, KINDS)
    ahead, passed = columns(n_steps), []
    for piece in batch.split(widths, 1):
        made = ahead.inv(piece)
        passed += [] if made is None else [made]
        assert ahead.held is None or ahead.held.batch_size[-1] <= n_steps - 1
    last = ahead.flush()
    passed += [] if last is None else [last]
    same(torch.cat([one.clone() for one in passed], 1), multi_step(batch, 0.9, n_steps))
    assert ahead.flush() is None


def test_columns_stay_rectangular_when_environments_end_at_different_times():
    batch = environments(4, 10, [2, 3, 5], KINDS)
    ahead = columns(3)
    assert ahead.inv(batch[:, :2]) is None
    assert ahead.inv(batch[:, 2:7]).batch_size == (4, 5)
    assert ahead.inv(batch[:, 7:]).batch_size == (4, 3)
    assert ahead.held.batch_size == (4, 2)


def test_named_time_dimension_may_come_first():
    batch = environments(4, 7, [3], KINDS)
    first = columns(3).inv(batch.transpose(0, 1))
    assert first.batch_size == (5, 4)
    assert first.names == ["time", None]
    same(first.transpose(0, 1).clone(), columns(3).inv(batch).clone())


def test_columns_keep_several_batch_dimensions():
    batch = environments(6, 7, [3, 4], KINDS).reshape(2, 3, 7)
    made = columns(2).inv(batch)
    assert made.batch_size == (2, 3, 6)
    same(made.clone(), multi_step(batch, 0.9, 2)[:, :, :6])


def test_producers_are_held_back_separately():
    one = environments(3, 8, [5], KINDS)
    other = one.clone()
    other[keys.TRAJ_IDS] += 1 << 32
    ahead, alone = columns(3), columns(3)
    for t in (0, 4):
        made = ahead.inv(one[:, t : t + 4])
        ahead.inv(other[:, t : t + 4])
        same(made.clone(), alone.inv(one[:, t : t + 4]).clone())
    assert ahead.held.batch_size == (3, 4)
    assert ahead.flush().batch_size == (3, 4)


def test_held_columns_are_in_the_state_dict():
    batch, one, other = environments(3, 8, [5], KINDS), columns(3), columns(3)
    one.inv(batch[:, :4])
    other.load_state_dict(one.state_dict())
    same(other.inv(batch[:, 4:]).clone(), one.inv(batch[:, 4:]).clone())


def test_held_columns_are_copies():
    batch, ahead = environments(3, 8, [5], KINDS), columns(3)
    mine = batch[:, :4].clone()
    ahead.inv(mine)
    mine["observation"].zero_()
    same(ahead.inv(batch[:, 4:]).clone(), multi_step(batch, 0.9, 3)[:, 2:6])


def test_rows_of_another_shape_are_refused():
    batch, ahead = environments(3, 8, [5], KINDS), columns(3)
    ahead.inv(batch[:, :4])
    with pytest.raises(ValueError, match=r"expected \[3\] environments.*got \[2\]"):
        ahead.inv(batch[:2, 4:])
    with pytest.raises(ValueError, match=r"one row for each environment: got \[6\]"):
        ahead.inv(trajectories([6]))
    padded = batch[:, 4:].clone().set(keys.MASK, torch.ones(3, 4, dtype=torch.bool))
    assert ahead.inv(padded) is not None  # a mask that leaves nothing out
    padded[keys.MASK][1, 3] = False
    with pytest.raises(ValueError, match="1 of 12 rows are padding"):
        ahead.inv(padded)
    with pytest.raises(ValueError, match=r"observation.*float32.*float64"):
        ahead.inv(batch[:, 4:].clone().set("observation", batch["observation"][:, 4:].double()))


def test_rows_without_ids_and_next_observations_are_not_held_back():
    batch = environments(3, 8, [5], KINDS).exclude(keys.TRAJ_IDS, ("next", "observation"))
    ahead = columns(3)
    with pytest.warns(UserWarning, match="of 24 rows of a call reach less than 3 steps"):
        same(ahead.inv(batch), multi_step(batch, 0.9, 3))
    assert ahead.held is None


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from(["collector", keys.TRAJ_IDS, keys.TRAJ_STEP]),
)
def test_columns_without_ids_continue_by_equal_observations(lengths, widths, n_steps, gone):
    batch = environments(3, sum(widths), lengths, KINDS)
    ahead, passed = columns(n_steps), []
    for piece in batch.exclude(gone, "is_init").split(widths, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows cut at the end
            passed.append(ahead.inv(piece))
        assert ahead.held is None or ahead.held.batch_size[-1] <= n_steps - 1
    passed = torch.cat([one.clone() for one in (*passed, ahead.flush()) if one is not None], 1)
    whole = multi_step(batch, 0.9, n_steps)
    if gone == "collector" and n_steps > 1:
        assert torch.equal(passed[keys.TRAJ_STEP], whole[keys.TRAJ_STEP])
        assert passed[keys.TRAJ_IDS].unique().numel() == whole[keys.TRAJ_IDS].unique().numel()
        passed = passed.exclude("collector")
    same(passed, whole.exclude(gone, "is_init"))


def test_column_with_contradicting_observations_is_cut():
    batch = environments(3, 8, [9], [EndKind.CUT]).exclude("collector", "is_init")
    second = batch[:, 4:].clone()
    second["observation"][1, 0] += 1
    ahead = columns(3)
    ahead.inv(batch[:, :4])
    with pytest.warns(UserWarning, match="2 of 12 rows of a call reach less than 3 steps"):
        made = ahead.inv(second)
    steps = made[keys.STEPS_TO_NEXT_OBS].squeeze(-1)
    assert steps[:, :2].tolist() == [[3, 3], [2, 1], [3, 3]]


def test_refused_flush_loses_no_rows():
    rows = environments(2, 3, [9], KINDS[:1])
    out = torch.zeros(2, 3, 4, 1, dtype=torch.bool)  # one agent is done, its environment is not
    out[0, 1, 2] = True
    rows["next", "agents"] = TensorDict({"done": out}, [2, 3])
    ahead = columns(5)
    assert ahead.inv(rows) is None
    with pytest.raises(ValueError, match="ends where its trajectory continues"):
        ahead.flush()
    assert ahead.held.batch_size == (2, 3)
