"""Rows without ids, which equal observations join."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
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
    passed, whole = passed[passed["tag"].argsort()], multi_step(batch, 0.9, n_steps).reshape(-1)
    if gone == "collector" and n_steps > 1:
        assert_numbered_alike(passed, whole)
        passed = passed.exclude("collector")
    same(passed, whole.exclude(gone))
    assert ahead.held is None


def assert_numbered_alike(found, wanted):
    """The trajectories are those of `wanted` under other ids, and steps are equal."""
    pairs = set(
        zip(
            found[keys.TRAJ_IDS].reshape(-1).tolist(),
            wanted[keys.TRAJ_IDS].reshape(-1).tolist(),
            strict=True,
        )
    )
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})
    assert torch.equal(found[keys.TRAJ_STEP], wanted[keys.TRAJ_STEP])


def vector_of(length):
    """Three environments without ids, a call a step, all of whose rows are masked in."""
    batch = environments(3, length, [9], [EndKind.CUT])
    batch[keys.MASK] = torch.ones(3, length, dtype=torch.bool)
    batch = batch.exclude(keys.TRAJ_IDS, keys.TRAJ_STEP)
    batch.names = None
    return [batch[:, t] for t in range(length)]


def test_rows_with_a_mask_go_on_in_the_next_call():
    ahead = MultiStepTransform(3, 0.9)
    made = [ahead.inv(rows) for rows in vector_of(6)]  # warnings are errors here
    assert made[:2] == [None, None]
    assert torch.cat(made[2:])[keys.STEPS_TO_NEXT_OBS].flatten().tolist() == [3] * 12


def test_a_row_that_is_masked_out_is_no_step():
    ahead, rows = MultiStepTransform(2, 1.0), vector_of(2)
    rows[1][keys.MASK][1] = False
    assert ahead.inv(rows[0]) is None
    made = ahead.inv(rows[1])
    assert torch.equal(made["observation"], rows[0]["observation"][[0, 2]])


def test_ids_that_are_given_are_of_one_producer_and_never_given_twice():
    ahead = MultiStepTransform(2, 1.0, producer=5)
    first, second = (torch.cat([ahead.inv(step_of([n], [n + 1.0], done=True))]) for n in (1.0, 7.0))
    ids = torch.cat([first, second])[keys.TRAJ_IDS]
    assert ids.tolist() == [5 << 32, (5 << 32) + 1]
    resumed = MultiStepTransform(2, 1.0)
    resumed.load_state_dict(ahead.state_dict())
    assert resumed.inv(step_of([9.0], [10.0], done=True))[keys.TRAJ_IDS] == (5 << 32) + 2
    with pytest.raises(ValueError, match=r"producer must be below 2\*\*31"):
        MultiStepTransform(2, 1.0, producer=1 << 31)


def producer_of(ahead, rows):
    return ahead.inv(rows)[keys.TRAJ_IDS].item() >> 32


def test_a_copy_of_the_transform_is_a_producer_of_its_own():
    ahead = MultiStepTransform(2, 1.0)
    rows = step_of([1.0], [2.0], done=True)
    copies = copy.deepcopy(ahead), pickle.loads(pickle.dumps(ahead))
    made = [producer_of(one, rows) for one in (ahead, *copies)]
    reader, writer = multiprocessing.Pipe(duplex=False)
    forked = multiprocessing.get_context("fork").Process(
        target=lambda: writer.send(producer_of(ahead, rows))
    )
    forked.start()
    made.append(reader.recv())
    forked.join()
    assert len(set(made)) == 4
    assert producer_of(ahead, rows) == made[0]


def test_rows_with_an_id_or_a_step_are_given_neither():
    for gone in (keys.TRAJ_IDS, keys.TRAJ_STEP):
        rows = trajectories([3]).exclude(gone)
        assert gone not in MultiStepTransform(2, 1.0).inv(rows).keys(True)


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


def ending_vector(repeats, masked=False, count=3):
    """Calls of a vector whose rows end at once; then a row that is only reset, or a new episode."""
    calls = []
    for turn in range(count):
        seen = [100.0 * turn + env for env in range(2)]
        after = [one + 0.5 for one in seen]
        calls.append(step_of(seen, after, done=True))
        if repeats:
            calls.append(step_of(after, [one + 100 for one in seen]))
    for number, rows in enumerate(calls):
        rows["collector", "mask"] = torch.full((2,), not (masked and number % 2))
    return calls


def test_rows_in_which_a_vector_only_reset_are_warned_of_once():
    ahead, calls = MultiStepTransform(2, 1.0), ending_vector(repeats=True)
    for rows in calls[:3]:
        ahead.inv(rows)  # two ends: too few to tell
    with pytest.warns(
        UserWarning, match=r"4 of 4 rows that end .*'mask'\) False, or take autoreset"
    ):
        ahead.inv(calls[3])
    ahead.inv(calls[4])
    ahead.inv(calls[5])  # warnings are errors here


def test_half_of_the_ends_before_rows_that_show_the_same_are_right():
    ahead = MultiStepTransform(2, 1.0)
    for rows in ending_vector(repeats=True, count=1) + ending_vector(repeats=False, count=4)[1:]:
        ahead.inv(rows)  # 2 of 4, then 2 of 6; warnings are errors here


def test_ends_before_a_new_episode_or_a_masked_row_are_right():
    for calls in (ending_vector(repeats=False), ending_vector(repeats=True, masked=True)):
        ahead = MultiStepTransform(2, 1.0)
        for rows in calls:
            ahead.inv(rows)
    stays = MultiStepTransform(2, 1.0)
    for _ in range(9):  # an observation that never changes says nothing
        stays.inv(step_of([1.0], [1.0], done=True))


def test_a_row_after_the_end_in_one_call_is_compared_too():
    ahead = MultiStepTransform(2, 1.0)
    rows = [step_of([1.0 * n], [n + 1.0], done=n % 2 == 0) for n in range(10)]
    with pytest.warns(UserWarning, match="5 of 5 rows that end a trajectory"):
        ahead.inv(torch.cat(rows))


def test_rows_without_ids_that_nothing_continues_wait_for_as_many_calls_as_patience():
    ahead = MultiStepTransform(3, 0.9, patience=2)
    given_up, other = trajectories([4, 9], EndKind.CUT).exclude("collector").split([4, 9])
    assert len(ahead.inv(given_up)) == 2
    assert ahead.inv(other[:1]) is None
    assert len(ahead.held) == 3
    with pytest.warns(UserWarning, match="2 of 2 rows of a call reach less than 3 steps"):
        passed = ahead.inv(other[1:2])
    torch.testing.assert_close(passed["next", "reward"].flatten(), torch.tensor([3 + 0.9 * 4, 4]))
    assert len(ahead.held) == 2
    assert len(ahead.inv(other[2:])) == 7
