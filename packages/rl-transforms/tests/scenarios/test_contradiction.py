"""Rows whose observations contradict each other are never joined, whatever the transform."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.segments import contradiction
from rl_layout.testing import EndKind, environments
from rl_transforms import (
    BurnIn,
    CatFrames,
    HindsightRelabel,
    MultiStep,
    MultiStepTransform,
    NextStateReconstructor,
    TimeMaxPool,
)

NUMBER = ("collector", "tag")


def unmarked(batch):
    """Rows as written by hand: no names, no ids, no steps, no first steps."""
    batch = batch.exclude("collector", "is_init")
    batch.names = None
    return batch


def vector(num_envs, num_steps):
    """A vector's rows laid along the batch, one call a step: [num_steps * num_envs]."""
    batch = environments(num_envs, num_steps, [4], [EndKind.TERMINATED])
    batch["next", "reward"] = 10.0 ** batch[keys.TRAJ_IDS].unsqueeze(-1).float().remainder(3)
    return unmarked(batch).transpose(0, 1).reshape(-1)


def goals(batch):
    batch = batch.set("achieved_goal", batch["observation"])
    batch["next", "achieved_goal"] = batch["next", "observation"]
    return batch.set("desired_goal", torch.full_like(batch["observation"], -1))


def reached(rows):
    return (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1).float()


def written(rows):
    """What a write of rows makes of them in the end, in the order in which they came."""
    ahead = MultiStepTransform(3, 0.5)
    made = [ahead.inv(rows.set("tag", torch.arange(len(rows)))), ahead.flush()]
    made = torch.cat([one for one in made if one is not None])
    return made[made["tag"].argsort()].exclude("tag")


TRANSFORMS = {
    "MultiStep": lambda: MultiStep(0.5, 3),
    "MultiStepTransform": lambda: written,
    "CatFrames": lambda: CatFrames(3, -1, ["observation"]),
    "TimeMaxPool": lambda: TimeMaxPool(["observation"], T=3),
    "HindsightRelabel": lambda: HindsightRelabel(reached, her_ratio=1, strategy="final"),
}


def test_n_step_rows_of_a_vector_span_one_row():
    rows = vector(8, 10)
    for name in ("MultiStep", "MultiStepTransform"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = TRANSFORMS[name]()(rows)
        told = [str(warning.message) for warning in said]
        assert sum("contradict" in text for text in told) == (name == "MultiStep")
        assert made["next", "steps_to_next_obs"].flatten().tolist() == [1] * 80
        assert torch.equal(made["next", "reward"], rows["next", "reward"])
        assert torch.equal(made["next", "observation"], rows["next", "observation"])
        contradiction.warned.clear()


def test_n_step_rows_of_adjacent_pieces_end_with_their_piece():
    # steps 0 and 1 of one environment, steps 2 and 3 of another, step 2 of the first
    batch = environments(2, 6, [9], [EndKind.TERMINATED])
    rows = unmarked(batch)
    rows = torch.cat([rows[0, :2], rows[1, 2:4], rows[0, 2:3]])
    rows["next", "reward"] = torch.tensor([[1.0], [2], [4], [8], [16]])
    made = MultiStep(0.5, 3)(rows)
    assert made["next", "reward"].flatten().tolist() == [2, 2, 8, 8, 16]
    assert made["next", "steps_to_next_obs"].flatten().tolist() == [2, 1, 2, 1, 1]


def test_stacks_of_a_vector_hold_frames_of_one_environment():
    rows = vector(4, 3)
    rows["is_init"] = torch.arange(12).unsqueeze(-1) < 4
    with pytest.warns(UserWarning, match="contradict"):
        made = CatFrames(2, -1, ["observation"])(rows)
    first, newest = made["stacked_observation"].split(2, -1)
    assert torch.equal(newest, rows["observation"])
    assert torch.equal(first[:4], rows["observation"][:4])
    # the frame before a later row is not in the batch: it says so, and takes no neighbour's
    assert made[keys.HISTORY_MISSING].tolist() == [False] * 4 + [True] * 8
    assert not (first[4:] == rows["observation"][3:-1]).all(-1).any()


def test_pools_of_a_vector_hold_one_frame():
    rows = vector(4, 3)
    with pytest.warns(UserWarning, match="contradict"):
        made = TimeMaxPool(["observation"], T=2)(rows)
    assert torch.equal(made["observation"], rows["observation"])


def test_goals_of_a_vector_come_from_the_row_itself():
    rows = goals(vector(4, 3))
    with pytest.warns(UserWarning, match="contradict"):
        made = TRANSFORMS["HindsightRelabel"]()(rows)
    assert torch.equal(made["desired_goal"], rows["next", "achieved_goal"])


def test_stacks_of_n_step_rows_hold_no_frame_of_rows_that_disagree_on_their_end():
    seen, rows = torch.randn(9, 2), torch.arange(8)
    far = (8 - rows).clamp(max=3)
    after = seen[rows + far]
    after[5] += 1  # of the rows 5, 6 and 7, which reach the same end
    below = {"observation": after, "steps_to_next_obs": far.unsqueeze(-1)}
    below["done"] = torch.zeros(8, 1, dtype=torch.bool)
    batch = TensorDict({"observation": seen[:8], "next": below}, [8])
    batch["is_init"] = (rows == 0).unsqueeze(-1)
    made = CatFrames(3, -1, ["observation"])(batch)
    known = ~made[keys.HISTORY_MISSING]
    assert known.tolist() == [True] * 4 + [False] * 4
    wanted = torch.cat([seen[1:5], seen[2:6], after[:4]], -1)
    assert torch.equal(made["next", "stacked_observation"][known], wanted)


def test_next_states_are_rebuilt_from_rows_joined_by_ids_and_steps_only():
    batch = environments(2, 4, [9], [EndKind.TERMINATED])
    rows = batch.transpose(0, 1).reshape(-1).exclude(("next", "observation"))
    rows.names = None
    made = NextStateReconstructor()(rows)  # environments in turn: no neighbour follows
    assert made[keys.NEXT_MISSING].all()
    with pytest.raises(KeyError, match="traj_step"):  # no guess where a marker is missing
        NextStateReconstructor()(rows.exclude(keys.TRAJ_STEP))


class Warm(torch.nn.Module):
    """Writes the sum of what it has seen of a row's run."""

    in_keys, out_keys = ["observation", "state"], ["seen", ("next", "state")]

    def forward(self, batch):
        batch["next", "state"] = batch["state"] + batch["observation"].cumsum(0)
        return batch


def test_burn_in_treats_each_row_of_a_vector_as_its_own_segment():
    rows = vector(4, 3)
    rows["state"] = torch.zeros(12, 2)
    with (
        pytest.warns(UserWarning, match="contradict"),
        pytest.raises(ValueError, match="at most 1 rows"),
    ):
        BurnIn(Warm(), burn_in=1, out_keys=["state"])(rows)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(1, 5)), min_size=1),
    st.sampled_from(sorted(TRANSFORMS)),
    st.booleans(),
)
def test_rows_are_joined_by_their_ids_and_steps(pieces, name, with_init):
    """Brute force: pieces of three environments in any order, with and without ids and steps."""
    batch = goals(environments(3, 8, [5, 2], [EndKind.TERMINATED, EndKind.TRUNCATED]))
    batch["next", "reward"] = torch.randn(3, 8, 1)
    rows = torch.cat([batch[env, first : first + size] for env, first, size in pieces])
    rows.names = None
    known = list(zip(rows[keys.TRAJ_IDS].tolist(), rows[keys.TRAJ_STEP].tolist(), strict=True))
    runs, steps = [0], [0]
    for (last, before), (now, step), done in zip(
        known, known[1:], rows["next", "done"].flatten().tolist(), strict=False
    ):
        joins = last == now and step == before + 1 and not done
        runs.append(runs[-1] if joins else runs[-1] + 1)
        steps.append(steps[-1] + 1 if joins else 0)
    with_init |= name == "CatFrames"  # which guesses no start
    plain = rows.exclude("collector") if with_init else rows.exclude("collector", "is_init")
    if with_init:
        plain["is_init"] = torch.tensor(steps).unsqueeze(-1) == 0
    told = plain.clone()
    told["collector"] = TensorDict(
        {"traj_ids": torch.tensor(runs), "traj_step": torch.tensor(steps)}, [len(rows)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = TRANSFORMS[name]()(plain)
    wanted = TRANSFORMS["MultiStep" if name == "MultiStepTransform" else name]()(told)
    for key in found.keys(True, True):
        if key[0] != "collector":
            torch.testing.assert_close(found[key], wanted[key], equal_nan=True, msg=str(key))
