"""Steps that a vector has played beyond the end of a rollout."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule, TensorDictSequential

SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)

LENGTHS = [[3, 1, 4], [2], [5, 1, 1], [7, 2]]


def test_a_rollout_may_end_inside_what_was_left_over(native):
    env = native([[1], [40]])
    env.rollout(20, break_when_any_done=False)  # row 1 is 20 steps ahead by then
    assert env.leftover.num_steps == 19
    then = env.rollout(3, break_when_any_done=False, auto_reset=False)
    assert then["observation"][1, :, 2].tolist() == [20, 21, 22]
    assert then["observation"][0, :, 1].tolist() == [20, 21, 22]
    done = env.rollout(30, auto_reset=False)
    assert done.shape == (2, 1)
    assert done["observation"][:, 0].tolist() == [[0, 23, 0], [1, 0, 23]]


def test_a_done_row_among_what_was_left_over_ends_the_next_rollout(native):
    env = native([[1, 1, 1, 1, 9], [5]])
    env.rollout(4, break_when_any_done=False)
    assert env.leftover.num_steps == 3  # a last step, a reset and a first step of row 1
    then = env.rollout(30, auto_reset=False)
    assert then["observation"][:, :, 1:].tolist() == [[[4, 0]], [[0, 4]]]
    assert env.rollout(1, auto_reset=False)["observation"][1].tolist() == [[1, 1, 0]]


def test_surplus_steps_are_dropped_by_a_reset_and_a_step(native):
    env = native()
    with pytest.raises(RuntimeError, match="nothing to continue"):
        env.rollout(3, auto_reset=False)
    env.rollout(5, break_when_any_done=False)
    root = env.reset()
    with pytest.raises(RuntimeError, match="nothing to continue"):
        env.rollout(3, auto_reset=False)
    with pytest.raises(RuntimeError, match="leave tensordict out"):
        env.rollout(3, auto_reset=False, tensordict=root)


def test_with_nothing_left_over_another_policy_may_go_on(native):
    env = native([[4], [4]])
    env.rollout(3)
    scored = TensorDictSequential(
        TensorDictModule(lambda seen: seen.sum(-1), ["observation"], ["score"]),
        TensorDictModule(lambda seen: torch.eye(2).bool(), ["observation"], ["action"]),
    )
    batch = env.rollout(2, scored, break_when_any_done=False, auto_reset=False)
    assert batch["score"].tolist() == [[3, 1], [4, 2]]
