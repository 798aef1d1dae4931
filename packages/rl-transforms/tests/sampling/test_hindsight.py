from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import Segments, keys
from rl_layout.reference import ListRowSource
from rl_layout.testing import EndKind, batches, environments, flat_batches, trajectories
from rl_transforms import HindsightRelabel, HindsightStrategy, multi_step
from rl_transforms.sampling.hindsight import RELABELLED

GOAL, REACHED = "desired_goal", "achieved_goal"
strategies = st.sampled_from(list(HindsightStrategy))


def with_goals(batch):
    """Goals (id, step) that are reached, and one far away that is wanted."""
    batch[REACHED] = batch["observation"]
    batch["next", REACHED] = batch["next", "observation"]
    batch[GOAL] = torch.full_like(batch["observation"], 500.0)
    batch["next", GOAL] = batch[GOAL].clone()
    return batch


def reward(rows):
    return -(rows["next", REACHED] - rows[GOAL]).abs().sum(-1)


def is_there(rows):
    return (rows["next", REACHED] == rows[GOAL]).all(-1, keepdim=True)


def assert_judged(found, batch, segments):
    """Goals were reached in the same segment, rewards fit them, and other rows are untouched."""
    other = found[RELABELLED].reshape(-1)
    flat, given = found.reshape(-1), batch.reshape(-1)
    goals, ids = flat[GOAL][other], segments.ids.reshape(-1)
    assert torch.equal(flat["next", GOAL][other], goals)
    assert torch.equal(flat["next", "reward"][other].flatten(), reward(flat[other]))
    assert torch.equal(flat[GOAL][~other], given[GOAL][~other])
    assert torch.equal(flat["next", "reward"][~other], given["next", "reward"][~other])
    reached = given["next", REACHED]
    for row, goal in zip(other.nonzero()[:, 0], goals, strict=True):
        yield row, ids[row] >= 0, (reached == goal).all(-1) & (ids == ids[row])


@pytest.mark.parametrize(
    ("strategy", "steps"), [("final", [[3]] * 3), ("future", [[1, 2, 3], [2, 3], [3]])]
)
def test_goals_of_three_steps_are_those_of_the_strategy(strategy, steps):
    rows = with_goals(trajectories([3, 2]))
    change = HindsightRelabel(reward, her_ratio=1, strategy=strategy)
    seen = [set(), set(), set()]
    for _ in range(40):
        found = change(rows)
        assert (found[GOAL][:3, 0] == 7).all()
        for row in range(3):
            seen[row].add(int(found[GOAL][row, 1]))
        assert found["next", "reward"][2].item() == 0
    assert [sorted(one) for one in seen] == steps


@given(batches(), strategies)
def test_goals_come_from_the_same_segment_of_a_batch(batch, strategy):
    batch = with_goals(batch)
    segments, given = Segments.of(batch), batch.clone()
    found = HindsightRelabel(reward, her_ratio=1, strategy=strategy)(batch)
    real = segments.ids >= 0
    assert torch.equal(found[RELABELLED], real)
    for row, _, where in assert_judged(found, batch, segments):
        places = where.nonzero()[:, 0]
        if strategy == "future":
            assert places[-1] >= row
        if strategy == "final":
            assert places[-1] == segments.lasts[segments.ids.reshape(-1)[row]]
    assert (batch == given).all()


@settings(max_examples=40)
@given(flat_batches(max_rows=20), strategies, st.data())
def test_single_rows_get_goals_of_their_whole_stored_trajectory(batch, strategy, data):
    batch = with_goals(batch)
    batch[keys.ROW] = torch.arange(len(batch))
    segments = Segments.of(batch)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=4)))
    change = HindsightRelabel(reward, her_ratio=1, strategy=strategy)
    found = change(batch[rows], ListRowSource(batch))
    assert found[RELABELLED].all()
    ids = segments.ids
    for row, goal in zip(rows, found[GOAL], strict=True):
        where = ((batch["next", REACHED] == goal).all(-1) & (ids == ids[row])).nonzero()[:, 0]
        assert len(where) == 1
        assert where[0] >= (row if strategy != "episode" else segments.starts[ids[row]])
        if strategy == "final":
            assert where[0] == segments.lasts[ids[row]]


@pytest.mark.parametrize("in_buffer", [False, True])
@pytest.mark.parametrize(("strategy", "choices"), [("future", 6), ("episode", 8)])
def test_goals_are_drawn_uniformly(in_buffer, strategy, choices):
    torch.manual_seed(0)
    change = HindsightRelabel(reward, her_ratio=1, strategy=strategy)
    if in_buffer:
        rows = with_goals(trajectories([8]))
        rows[keys.ROW] = torch.arange(8)
        found = change(rows[torch.full((300,), 2)], ListRowSource(rows))
    else:
        found = change(with_goals(trajectories([8] * 300)))[2::8]
    counts = torch.bincount(found[GOAL][:, 1].long(), minlength=9)[9 - choices :]
    assert counts.sum() == 300
    assert (counts - 300 / choices).abs().max() < 5 * (300 / choices) ** 0.5


def test_her_ratio_is_the_share_of_relabelled_rows():
    torch.manual_seed(0)
    batch = with_goals(environments(3, 400, [7, 5], [EndKind.TERMINATED]))
    found = HindsightRelabel(reward, her_ratio=0.25)(batch)
    assert found[RELABELLED].float().mean() == pytest.approx(0.25, abs=0.06)
    assert list(assert_judged(found, batch, Segments.of(batch)))
    for ratio in (0, 1):
        assert HindsightRelabel(reward, her_ratio=ratio)(batch)[RELABELLED].float().mean() == ratio


def test_terminations_are_recomputed_with_terminated_fn():
    batch = with_goals(trajectories([4, 3], [EndKind.TERMINATED, EndKind.TRUNCATED]))
    found = HindsightRelabel(reward, her_ratio=1, strategy="final", terminated_fn=is_there)(batch)
    ended = [False, False, False, True, False, False, True]
    assert found["next", "terminated"].flatten().tolist() == ended
    assert found["next", "done"].equal(found["next", "terminated"] | found["next", "truncated"])
    never = HindsightRelabel(
        reward, her_ratio=1, terminated_fn=lambda r: torch.zeros(len(r)).bool()
    )
    assert never(batch)["next", "done"].flatten().tolist() == [False] * 6 + [True]
    plain = HindsightRelabel(reward, her_ratio=1)(batch)
    assert plain["next", "terminated"].equal(batch["next", "terminated"])


def test_missing_and_overwritten_goals_are_not_used():
    rows = with_goals(trajectories([3]))
    rows[keys.ROW] = torch.arange(3)
    rows[keys.NEXT_MISSING] = torch.tensor([False, False, True])
    last = HindsightRelabel(reward, her_ratio=1, strategy="final")
    assert not last(rows)[RELABELLED].any()

    class Late(ListRowSource):
        def read(self, rows, keys):
            found, _ = super().read(rows, keys)
            return found, torch.zeros(rows.shape, dtype=torch.bool)

    assert not last(rows.exclude(keys.NEXT_MISSING), Late(rows))[RELABELLED].any()


def test_missing_goals_and_invalid_settings_are_refused():
    rows = with_goals(trajectories([3]))
    change = HindsightRelabel(reward, her_ratio=1)
    with pytest.raises(KeyError, match="'desired_goal' is missing"):
        change(rows.exclude(GOAL))
    with pytest.raises(KeyError, match=r"'achieved_goal'\) is missing"):
        change(rows.exclude(("next", REACHED)))
    with pytest.raises(KeyError, match=r"'row'\) is missing"):
        change(rows, ListRowSource(rows))
    with pytest.raises(ValueError, match="relabel single steps"):
        change(multi_step(rows, 0.9, 2))
    with pytest.raises(ValueError, match=r"alike, got \[3, 3\]"):
        change(rows.set(GOAL, torch.zeros(3, 3)))
    rows[GOAL] = rows[REACHED]
    with pytest.raises(ValueError, match=r"reward_fn: expected \[3, 1\] of 3 rows, got \[3, 2\]"):
        HindsightRelabel(lambda r: r[GOAL], her_ratio=1)(rows)
    with pytest.raises(ValueError, match="chance from 0 to 1, got 2"):
        HindsightRelabel(reward, her_ratio=2)
    with pytest.raises(ValueError, match="'future', 'final' or 'episode', got 'random'"):
        HindsightRelabel(reward, strategy="random")
    with pytest.raises(TypeError, match=r"reward_fn: expected a function of rows, got 1\.0"):
        HindsightRelabel(1.0)
    with pytest.raises(ValueError, match="cannot sit in an environment"):
        change.check_place("environment")
    judge = HindsightRelabel(reward, her_ratio=1, terminated_fn=is_there)
    with pytest.raises(KeyError, match=r"'terminated'\) is missing"):
        judge(rows.exclude(keys.NEXT_TERMINATED))
