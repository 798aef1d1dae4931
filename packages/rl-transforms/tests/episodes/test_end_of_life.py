from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import Segments, check_layout, step_mdp
from rl_layout.testing import EndKind, trajectories
from rl_specs import Binary, Composite, Unbounded
from rl_transforms import EndOfLife


def flag(*rows):
    return torch.tensor(rows).unsqueeze(-1)


def played(lives, ending=EndKind.TERMINATED):
    """One trajectory with these lives before its steps, and after the last of them."""
    rows = trajectories([len(lives) - 1], ending)
    rows["lives"] = torch.tensor(lives[:-1])
    rows["next", "lives"] = torch.tensor(lives[1:])
    return rows


def test_lost_life_is_marked_and_ends_no_episode():
    eol = EndOfLife()
    no = flag(False, False, False)
    root = eol.reset(TensorDict({"lives": torch.tensor([3, 3, 1]), "done": no}, [3]))
    assert root["end-of-life"].flatten().tolist() == [False, False, False]
    after = TensorDict({"lives": torch.tensor([3, 2, 2]), "done": no}, [3])
    stepped = eol.step(root, after)
    assert stepped["end-of-life"].flatten().tolist() == [False, True, False]
    assert not stepped["done"].any()
    assert "end-of-life" not in after


def test_end_of_an_episode_is_marked():
    lives, over = torch.tensor([2, 2]), flag(False, True)
    root = TensorDict({"lives": lives}, [2])
    after = EndOfLife().step(root, TensorDict({"lives": lives, "done": over}, [2]))
    assert after["end-of-life"].flatten().tolist() == [False, True]


def test_partial_reset_clears_masked_rows_only():
    eol = EndOfLife()
    root = TensorDict({"lives": torch.tensor([1, 1]), "end-of-life": flag(True, True)}, [2])
    again = eol.reset(root, torch.tensor([False, True]))
    assert again["end-of-life"].flatten().tolist() == [True, False]
    assert root["end-of-life"].all()


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 1)])
def test_agents_have_lives_of_their_own(shape):
    keys = {name: ("agents", name) for name in ("eol", "lives", "done")}
    eol = EndOfLife(keys["eol"], keys["lives"], keys["done"])
    done = Composite(agents={"done": Binary(shape=(2, 4, 1), dtype=torch.bool)}, shape=(2,))
    shown = Composite(agents={"lives": Unbounded(shape, dtype=torch.int64)}, shape=(2,))
    assert eol.transform_done_spec(done) is done
    assert eol.transform_observation_spec(shown)["agents", "eol"].shape == (2, 4, 1)
    lives = torch.full(shape, 3)
    root = eol.reset(TensorDict({"agents": {"lives": lives}}, [2]))
    assert root["agents", "eol"].shape == (2, 4, 1)
    less = lives.clone()
    less[1, 2] -= 1
    entries = {"lives": less, "done": torch.zeros(2, 4, 1, dtype=torch.bool)}
    after = eol.step(root, TensorDict({"agents": entries}, [2]))
    assert after["agents", "eol"].nonzero().tolist() == [[1, 2, 0]]


def test_rows_are_marked_as_steps_were():
    rows = played([3, 3, 2, 2, 0])
    marked = EndOfLife()(rows)
    assert marked["next", "end-of-life"].flatten().tolist() == [False, True, False, True]
    assert "end-of-life" not in rows["next"]
    eol, root, flags = EndOfLife(), rows[0], []
    for row in rows:
        root = eol.step(row, row["next"])
        flags.append(root["end-of-life"].item())
    assert flags == marked["next", "end-of-life"].flatten().tolist()


def test_existing_marks_are_kept():
    rows = EndOfLife()(played([3, 2, 1]))
    rows["next", "lives"] += 9
    assert EndOfLife()(rows) is rows


def test_mark_done_terminates_sampled_rows_at_a_lost_life():
    rows = played([3, 3, 2, 2, 2], EndKind.TRUNCATED)
    ended = EndOfLife(mark_done=True)(rows)
    assert ended["next", "terminated"].flatten().tolist() == [False, True, False, False]
    assert ended["next", "truncated"].flatten().tolist() == [False, False, False, True]
    assert ended["next", "done"].flatten().tolist() == [False, True, False, True]
    assert rows["next", "done"].flatten().tolist() == [False, False, False, True]
    check_layout(rows).raise_if_broken()


def test_mark_done_starts_another_segment_behind_a_lost_life_in_a_slice():
    rows = torch.cat([played([3, 3, 2, 2, 1]), played([2, 1, 1])])
    rows["collector", "slice_ids"] = torch.tensor([0] * 4 + [1] * 2)
    rows["is_init"] = flag(True, False, False, False, True, False)
    ended = EndOfLife(mark_done=True)(rows)
    assert ended["is_init"].flatten().tolist() == [True, False, True, False, True, True]
    assert rows["is_init"].flatten().tolist() == [True, False, False, False, True, False]
    assert Segments.of(ended).lengths.tolist() == [2, 2, 1, 1]
    alone = EndOfLife(mark_done=True)(rows.exclude(("collector", "slice_ids")))
    assert torch.equal(alone["is_init"], rows["is_init"])  # drawn one by one: nothing follows


def sliced(lives):
    """The same trajectory as a sampler draws it in one slice: its last step is cut."""
    rows = played(lives, EndKind.CUT)
    rows["collector", "slice_ids"] = torch.zeros(len(rows), dtype=torch.int64)
    rows["next", "truncated"][-1] = rows["next", "done"][-1] = True
    return rows


def test_mark_done_terminates_a_lost_life_in_the_last_step_of_a_slice():
    ended = EndOfLife(mark_done=True)(sliced([3, 2, 2, 1]))
    assert ended["next", "terminated"].flatten().tolist() == [True, False, True]
    kept = EndOfLife()(sliced([3, 2, 2, 1]))  # as an environment writes it
    assert EndOfLife(mark_done=True)(kept)["next", "terminated"][-1]
    alone = kept.exclude("lives", ("next", "lives"))  # a cut and a lost life look alike
    ended = EndOfLife(mark_done=True)(alone)
    assert ended["next", "terminated"].flatten().tolist() == [True, False, False]


def test_the_end_of_a_slice_is_no_lost_life():
    marked = EndOfLife()(sliced([3, 2, 2, 2]))
    assert marked["next", "end-of-life"].flatten().tolist() == [True, False, False]
    rows = sliced([3, 2, 2, 2])
    rows["collector", "mask"] = torch.tensor([True, True, False])
    rows["next", "truncated"][1] = rows["next", "done"][1] = True
    assert EndOfLife()(rows)["next", "end-of-life"][:2].flatten().tolist() == [True, False]
    rows = sliced([3, 2, 2, 2])
    rows["next", "terminated"][-1], rows["next", "truncated"][-1] = True, False
    assert EndOfLife()(rows)["next", "end-of-life"].flatten().tolist() == [True, False, True]


def test_samples_that_end_at_lost_lives_keep_their_layout():
    sample = sliced([3, 2, 2, 1])
    sample["is_init"][0], sample["index"] = True, torch.arange(3)
    other = played([2, 2, 1])
    other["collector", "traj_step"] += 5  # of the same trajectory, later
    other["collector", "slice_ids"] = torch.ones(2, dtype=torch.int64)
    other["index"] = torch.arange(5, 7)
    other["is_init"] = flag(True, False)
    ended = EndOfLife(mark_done=True)(torch.cat([sample, other]))
    assert not check_layout(ended).errors
    assert not check_layout(ended.exclude(("collector", "slice_ids"))).errors
    by_rows = check_layout(ended.exclude("index", ("collector", "slice_ids")))
    assert by_rows.errors  # as stored rows they would be a trajectory that continues after its end


def test_mark_done_is_refused_outside_a_buffer():
    with pytest.raises(ValueError, match="cannot sit in an environment: put it into one of buffer"):
        EndOfLife(mark_done=True).check_place("environment")


def test_environment_without_lives_is_refused():
    with pytest.raises(KeyError, match=r"there is no observation 'lives': there are \['seen'\]"):
        EndOfLife().transform_observation_spec(Composite(seen=Unbounded((3,))))
    with pytest.raises(KeyError, match="no done flag 'over'"):
        EndOfLife(done_key="over").transform_done_spec(Composite(done=Binary(shape=(1,))))
    with pytest.raises(ValueError, match=r"one number for each done flag \[1\]: 'lives' has \[3\]"):
        EndOfLife().transform_observation_spec(Composite(lives=Unbounded((3,))))
    with pytest.raises(KeyError, match="'lives' is missing"):
        EndOfLife().step(TensorDict({}, [2]), TensorDict({}, [2]))
    rows = played([3, 2])
    del rows["next", "done"]
    with pytest.raises(KeyError, match=r"'done'.*is missing"):
        EndOfLife()(rows)


def test_flag_moves_to_the_next_root():
    rows = EndOfLife()(played([3, 2, 2]))
    assert step_mdp(rows[0])["end-of-life"].item() is True
