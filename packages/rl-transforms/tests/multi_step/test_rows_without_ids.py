"""Rows without ids, which equal observations join."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_transforms import MultiStepTransform, multi_step


@pytest.mark.parametrize("gone", [keys.TRAJ_IDS, keys.TRAJ_STEP])
def test_rows_without_ids_and_observations_span_their_own_call(gone, same):
    ahead = MultiStepTransform(3, 0.9)
    batch = trajectories([5], EndKind.CUT).exclude(gone, ("next", "observation"))
    with pytest.warns(UserWarning, match="2 of 5 rows of a call reach less than 3 steps") as said:
        made = ahead.inv(batch)
    assert len(said) == 1
    same(made, multi_step(batch, 0.9, 3))
    same(ahead.inv(batch), made)  # warnings are errors here
    assert ahead.held is None


def test_rows_without_ids_ended_by_markers_do_not_warn():
    batch = trajectories([5, 1], EndKind.TERMINATED).exclude("collector")
    assert len(MultiStepTransform(3, 0.9).inv(batch)) == 6  # warnings are errors here


def pieces_of(draw, batch):
    """Rows of `[B, T]` in calls: one row, one row of every environment, or a few rows of one."""
    num_envs, num_steps = batch.batch_size
    kind = draw(st.sampled_from(["vectors", "rows", "runs"]))
    if kind == "vectors":
        return [batch[:, t] for t in range(num_steps)]
    at, pieces = [0] * num_envs, []
    while any(step < num_steps for step in at):
        env = draw(st.sampled_from([b for b in range(num_envs) if at[b] < num_steps]))
        size = 1 if kind == "rows" else draw(st.integers(1, 4))
        pieces.append(batch[env, at[env] : at[env] + size])
        at[env] += size
    return pieces


@given(st.data(), st.integers(1, 5), st.sampled_from(["collector", keys.TRAJ_IDS, keys.TRAJ_STEP]))
def test_rows_without_ids_are_joined_by_equal_observations(same, data, n_steps, gone):
    """Brute force: whole trajectories that are told apart by ids and steps."""
    kinds = data.draw(st.lists(st.sampled_from(list(EndKind)), min_size=2, max_size=2))
    batch = environments(3, 7, data.draw(st.permutations([2, 3, 4])), kinds)
    batch["next", "reward"] = torch.randn(3, 7, 1, dtype=torch.float64)
    batch["tag"] = torch.arange(21).view(3, 7)
    ahead, passed = MultiStepTransform(n_steps, 0.9, patience=99), []
    for piece in pieces_of(data.draw, batch):
        bare = piece.exclude(gone)
        bare.names = None
        passed.append(ahead.inv(bare))
        assert ahead.held is None or not [
            key for key in ahead.held.keys(True, True) if "_own" in key[-1]
        ]
    passed = torch.cat([rows for rows in (*passed, ahead.flush()) if rows is not None])
    whole = multi_step(batch, 0.9, n_steps).reshape(-1).exclude(gone)
    same(passed[passed["tag"].argsort()], whole)
    assert ahead.held is None


def step_of(seen, after, done=False):
    """A vector's rows `[N]`, from numbers that represent observations."""
    count = len(seen)
    return TensorDict(
        {
            "observation": torch.tensor(seen),
            "next": {
                "observation": torch.tensor(after),
                "reward": torch.ones(count, 1),
                "done": torch.full((count, 1), done),
            },
        },
        [count],
    )


def test_held_rows_with_equal_next_observations_are_not_continued():
    ahead = MultiStepTransform(2, 1.0)
    assert ahead.inv(step_of([0.0, 1, 2], [5.0, 5, 6])) is None
    made = ahead.inv(step_of([5.0, 6, 9], [7.0, 8, 9]))
    assert made["observation"].tolist() == [2]
    assert made["next", "observation"].tolist() == [8]
    assert ahead.held["observation"].tolist() == [0, 1, 5, 6, 9]


def test_held_row_with_two_successors_is_not_continued():
    ahead = MultiStepTransform(2, 1.0)
    ahead.inv(step_of([0.0], [5.0]))
    assert ahead.inv(step_of([5.0, 5.0], [7.0, 8.0])) is None
    assert len(ahead.held) == 3


def test_done_row_and_first_row_are_not_joined():
    ahead = MultiStepTransform(2, 1.0)
    assert len(ahead.inv(step_of([0.0], [5.0], done=True))) == 1
    ahead.inv(step_of([5.0], [6.0]))
    first = step_of([6.0], [7.0]).set("is_init", torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="differ from those held back"):
        ahead.inv(first)
    ahead.flush()
    ahead.inv(
        first.set("is_init", torch.zeros(1, 1, dtype=torch.bool)).set(
            "observation", first["observation"] - 1
        )
    )
    assert (
        ahead.inv(step_of([7.0], [8.0]).set("is_init", torch.ones(1, 1, dtype=torch.bool))) is None
    )
    assert len(ahead.held) == 2


def test_held_rows_without_successor_are_cut_with_a_warning():
    ahead = MultiStepTransform(2, 1.0, patience=2)
    for turn in range(2):
        assert ahead.inv(step_of([10.0 * turn], [10.0 * turn + 1])) is None
    with pytest.warns(UserWarning, match="1 of 1 rows of a call reach less than 2 steps"):
        made = ahead.inv(step_of([20.0], [21.0]))
    assert made[keys.STEPS_TO_NEXT_OBS].item() == 1


@pytest.mark.parametrize("columns", [False, True])
def test_held_rows_without_ids_are_in_the_state_dict(columns, same):
    batch = environments(2, 6, [9], [EndKind.CUT]).exclude("collector", "is_init")
    batch["next", "done"][:, -1] = True
    one, other = (MultiStepTransform(3, 0.9, columns=columns) for _ in range(2))
    parts = batch.split(3, 1) if columns else [batch[:, t] for t in range(6)]
    one.inv(parts[0])
    other.load_state_dict(one.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts[1:]:
            found, wanted = other.inv(part), one.inv(part)
            assert (found is None) == (wanted is None)
            if found is not None:
                same(found, wanted)
