from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys, step_mdp
from rl_layout.testing import EndKind, environments
from rl_specs import Binary, Composite
from rl_transforms import StepCounter
from rl_transforms.episodes.step_counter import since_reset

NO = torch.zeros(3, 1, dtype=torch.bool)


def flags(**given):
    return TensorDict({"done": NO, "terminated": NO, "truncated": NO, **given}, [3])


def test_counts_start_at_a_reset_and_rise_with_each_step():
    counter = StepCounter()
    root = counter.reset(flags())
    after = counter.step(root, flags())
    assert root["step_count"].dtype == torch.int64
    assert root["step_count"].flatten().tolist() == [0, 0, 0]
    assert after["step_count"].flatten().tolist() == [1, 1, 1]
    assert not after["done"].any()


def test_partial_reset_restarts_masked_rows_only():
    counter = StepCounter()
    after = counter.step(counter.reset(flags()), flags())
    again = counter.reset(after, torch.tensor([False, True, False]))
    assert again["step_count"].flatten().tolist() == [1, 0, 1]


def test_limit_truncates_and_never_terminates():
    counter = StepCounter(max_steps=2)
    root = counter.reset(flags())
    first = counter.step(root, flags())
    assert not first["done"].any()
    second = counter.step(step_mdp(root.set("next", first)), flags())
    assert second["truncated"].all()
    assert second["done"].all()
    assert not second["terminated"].any()
    assert not NO.any()


def test_termination_at_the_limit_is_kept():
    ended = torch.tensor([[True], [False], [False]])
    counter = StepCounter(max_steps=1)
    after = counter.step(counter.reset(flags()), flags(done=ended, terminated=ended))
    assert after["terminated"].flatten().tolist() == [True, False, False]
    assert after["done"].all()


def test_bare_done_flag_is_completed_before_the_limit_joins_it():
    ended = torch.tensor([[True], [False], [False]])
    counter = StepCounter(max_steps=1)
    bare = TensorDict({"done": ended}, [3])
    after = counter.step(counter.reset(bare), bare)
    assert after["terminated"].flatten().tolist() == [True, False, False]
    assert after["truncated"].all()


def test_limit_under_a_name_of_its_own_ends_nothing_without_update_done():
    counter = StepCounter(max_steps=2, truncated_key="limit", update_done=False)
    root = counter.reset(flags())
    assert not root["limit"].any()
    first = counter.step(root, flags())
    assert not first["limit"].any()
    second = counter.step(step_mdp(root.set("next", first)), flags())
    assert second["limit"].all()
    assert not second["done"].any()
    assert not second["truncated"].any()
    third = counter.reset(second, torch.tensor([False, True, False]))
    assert third["limit"].flatten().tolist() == [True, False, True]


def test_limit_under_a_name_of_its_own_truncates_by_default():
    counter = StepCounter(max_steps=1, truncated_key="limit")
    after = counter.step(counter.reset(flags()), flags())
    assert all(after[name].all() for name in ("limit", "truncated", "done"))
    assert not after["terminated"].any()


def test_done_is_unchanged_with_update_done_false():
    counter = StepCounter(max_steps=1, update_done=False)
    after = counter.step(counter.reset(flags()), flags())
    assert after["truncated"].all()
    assert not after["done"].any()


@pytest.mark.parametrize("name", ["done", "terminated"])
def test_limit_under_the_name_of_another_flag_is_refused(name):
    with pytest.raises(ValueError, match="a limit is no termination"):
        StepCounter(max_steps=3, truncated_key=name)


def test_groups_get_a_limit_of_their_own_name():
    done = Composite(agents={"done": Binary(shape=(3, 2, 1), dtype=torch.bool)}, shape=(3,))
    counter = StepCounter(max_steps=1, truncated_key="limit", update_done=False)
    assert counter.transform_done_spec(done) is done
    spec = counter.transform_observation_spec(Composite(shape=(3,)))
    assert spec["agents", "limit"].shape == (3, 2, 1)
    nested = TensorDict({"agents": {"done": torch.zeros(3, 2, 1, dtype=torch.bool)}}, [3])
    root = counter.reset(nested)
    assert not root["agents", "limit"].any()
    assert counter.step(root, nested)["agents", "limit"].all()


def test_every_done_group_is_counted_and_truncated():
    nested = TensorDict({"agents": {"done": torch.zeros(3, 2, 1, dtype=torch.bool)}}, [3])
    counter = StepCounter(max_steps=1)
    root = counter.reset(nested)
    after = counter.step(root, nested)
    assert "step_count" not in root
    assert after["agents", "step_count"].shape == (3, 2, 1)
    assert after["agents", "truncated"].all()


def test_specs_match_the_data():
    done = Composite(agents={"done": Binary(shape=(3, 2, 1), dtype=torch.bool)}, shape=(3,))
    counter = StepCounter(max_steps=4)
    flags_out = counter.transform_done_spec(done)
    assert set(flags_out["agents"].keys()) == {"done", "terminated", "truncated"}
    assert flags_out["agents", "truncated"].shape == (3, 2, 1)
    assert ("agents", "truncated") not in done
    spec = counter.transform_observation_spec(Composite(shape=(3,)))
    assert list(spec.keys(True, True)) == [("agents", "step_count")]
    assert StepCounter().transform_done_spec(done) is done
    assert (StepCounter().online, counter.online) == (False, True)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 5))
def test_finished_rows_get_the_counts_of_every_step(lengths, cut):
    batch = environments(3, 6, lengths, [EndKind.TERMINATED])
    counter, count, columns = StepCounter(), None, []
    for t in range(6):
        now = batch[:, t].clone()
        if count is not None:
            now["step_count"] = count
        root = counter.reset(now, now["is_init"].squeeze(-1) if t else None)
        after = counter.step(root, now["next"])
        count = after["step_count"]
        columns.append(root.set("next", after))
    stepped = torch.stack(columns, 1)
    first = counter.rows(batch[:, :cut])
    rows = torch.cat([first, counter.rows(batch[:, cut:], first[:, -1])], 1)
    assert torch.equal(rows["next", "step_count"], stepped["next", "step_count"])
    assert torch.equal(rows["step_count"], stepped["step_count"])
    assert torch.equal(rows["step_count"].squeeze(-1), batch["collector", "traj_step"])


def test_counts_continue_from_the_column_before():
    done = torch.tensor([[False, True, False], [True, False, False]]).T
    assert since_reset(done, 0, torch.tensor([4, 7])).T.tolist() == [[4, 5, 0], [7, 0, 1]]


def test_forward_returns_samples_unchanged():
    batch = environments(3, 5, [2], [EndKind.CUT])
    assert StepCounter()(batch) is batch


def test_invalid_limits_and_missing_counts_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        StepCounter(max_steps=0)
    with pytest.raises(TypeError, match="last part of a key"):
        StepCounter(truncated_key=("a", "b"))
    with pytest.raises(KeyError, match=r"'step_count' is missing.*Call reset first"):
        StepCounter().step(flags(), flags())
    with pytest.raises(ValueError, match="call step at every step"):
        StepCounter(3).rows(environments(3, 5, [2], [EndKind.CUT]))


def test_done_with_truncated_is_no_termination():
    ended, cut = torch.tensor([[True], [True], [False]]), torch.tensor([[True], [False], [False]])
    counter = StepCounter(max_steps=5)
    after = TensorDict({"done": ended, "truncated": cut}, [3])
    made = counter.step(counter.reset(after), after)
    assert made["terminated"].flatten().tolist() == [False, True, False]


def test_environment_without_batch_dimensions_is_counted():
    counter = StepCounter(max_steps=1)
    done = TensorDict({"done": torch.zeros(1, dtype=torch.bool)}, [])
    after = counter.step(counter.reset(done), done)
    assert after["step_count"].tolist() == [1]
    assert after["truncated"].tolist() == [True]
    assert counter.reset(after, torch.tensor(True))["step_count"].tolist() == [0]


def test_finished_rows_do_not_change_the_shape_of_later_resets():
    counter = StepCounter()
    flags = {name: torch.zeros(2, 5, 1, dtype=torch.bool) for name in keys.DONE_KEYS}
    counter.rows(TensorDict({**flags, "next": flags}, [2, 5]))
    root = TensorDict({"step_count": torch.full((2, 1), 3), "done": flags["done"][:, 0]}, [2])
    root = counter.reset(root, torch.tensor([True, False]))
    assert root["step_count"].tolist() == [[0], [3]]
