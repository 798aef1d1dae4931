from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import step_mdp
from rl_layout.testing import EndKind, environments
from rl_specs import Binary, Composite
from rl_transforms import InitTracker


def flags(*group, num_agents=None):
    shape = (3, 1) if num_agents is None else (3, num_agents, 1)
    batch = TensorDict({}, [3])
    batch[(*group, "done")] = torch.zeros(shape, dtype=torch.bool)
    return batch


def test_reset_marks_every_row_and_a_step_marks_none():
    tracker = InitTracker()
    root = tracker.reset(flags())
    assert root["is_init"].shape == (3, 1)
    assert root["is_init"].all()
    assert not tracker.step(root, flags())["is_init"].any()


def test_partial_reset_marks_masked_rows_only():
    tracker = InitTracker()
    first = tracker.reset(flags())
    root = step_mdp(first.set("next", tracker.step(first, flags())))
    again = tracker.reset(root, torch.tensor([False, True, False]))
    assert again["is_init"].flatten().tolist() == [False, True, False]
    assert not root["is_init"].any()


def test_unmasked_rows_without_a_mark_get_false():
    marked = InitTracker().reset(flags(), torch.tensor([False, True, False]))
    assert marked["is_init"].flatten().tolist() == [False, True, False]


def test_every_done_group_has_a_flag_of_its_own():
    tracker = InitTracker()
    both = flags().update(flags("agents", num_agents=2))
    root = tracker.reset(both, None)
    assert root["agents", "is_init"].shape == (3, 2, 1)
    again = tracker.reset(tracker.step(root, both), torch.tensor([True, False, False]))
    assert again["agents", "is_init"].any(1).flatten().tolist() == [True, False, False]
    assert again["is_init"].flatten().tolist() == [True, False, False]


def test_spec_has_the_groups_of_the_done_spec():
    tracker = InitTracker("first")
    nested = {"done": Binary(shape=(3, 2, 1))}
    done = Composite(done=Binary(shape=(3, 1)), agents=nested, shape=(3,))
    assert tracker.transform_done_spec(done) is done
    spec = tracker.transform_observation_spec(Composite(shape=(3,)))
    assert spec["first"].dtype == torch.bool
    assert spec["agents", "first"].shape == (3, 2, 1)
    reset = tracker.reset(TensorDict({}, [3]))
    assert spec.is_in(reset)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans(), st.integers(1, 5))
def test_finished_rows_get_the_flags_of_every_step(lengths, with_steps, cut):
    batch = environments(3, 6, lengths, [EndKind.TERMINATED, EndKind.TRUNCATED])
    bare = batch.exclude("is_init", *([] if with_steps else [("collector", "traj_step")]))
    tracker = InitTracker()
    first = tracker.rows(bare[:, :cut])
    second = tracker.rows(bare[:, cut:], first[:, -1])
    assert torch.equal(torch.cat([first, second], 1)["is_init"], batch["is_init"])


def test_forward_returns_samples_unchanged():
    batch = environments(3, 5, [2], [EndKind.CUT])
    assert InitTracker()(batch) is batch


def test_invalid_keys_and_masks_and_missing_flags_are_refused():
    with pytest.raises(TypeError, match="Groups are found"):
        InitTracker(("agents", "is_init"))
    with pytest.raises(ValueError, match="Pass one flag per row"):
        InitTracker().reset(flags(), torch.tensor([True]))
    with pytest.raises(KeyError, match="is missing"):
        InitTracker().rows(environments(3, 5, [2], [EndKind.CUT]).exclude("next", "collector"))


def test_earlier_reset_row_keeps_its_mark():
    tracker = InitTracker()
    again = tracker.reset(tracker.reset(flags()), torch.tensor([False, True, False]))
    assert again["is_init"].all()


def test_traj_step_tells_rows_in_mid_trajectory():
    batch = environments(3, 5, [4], [EndKind.TERMINATED])[:, 1:]
    assert not InitTracker().rows(batch.exclude("is_init"))["is_init"][:, 0].any()


def test_environment_without_batch_dimensions_is_tracked():
    tracker = InitTracker()
    done = TensorDict({"done": torch.zeros(1, dtype=torch.bool)}, [])
    root = tracker.reset(done)
    assert root["is_init"].tolist() == [True]
    assert tracker.reset(tracker.step(root, done), torch.tensor(True))["is_init"].tolist() == [True]
    assert tracker.step(root, done)["is_init"].tolist() == [False]
