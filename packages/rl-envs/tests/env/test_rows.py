import numpy as np
import pytest

from rl_envs.env.binding import as_tensordict, write
from rl_envs.testing import EpisodeStepEnv, MultiAgentEnv


def test_rows_are_stepped_as_tensordicts_are():
    env = EpisodeStepEnv([(2, "terminated")], batch_size=(2,))
    rows = {("observation",): np.zeros((2, 2), "float32"), ("done",): np.ones((2, 1), bool)}
    env.reset_into(rows)
    assert rows["observation",].tolist() == [[0, 0], [1, 0]]
    assert not rows["done",].any()
    after = {("observation",): np.zeros((2, 2), "float32")}
    env.step_into({**rows, ("action",): np.eye(2) > 0}, after)
    assert after["observation",].tolist() == [[0, 1], [1, 1]]


def test_rows_outside_the_mask_stay():
    env = EpisodeStepEnv(batch_size=(2,))
    rows = {("observation",): np.full((2, 2), 7, "float32")}
    env.reset_into({})
    env.reset_into(rows, np.array([[False], [True]]))
    assert rows["observation",].tolist() == [[7, 7], [3, 0]]


def test_as_tensordict_copies_rows():
    row = np.zeros((3, 2))
    assert as_tensordict({("a", "b"): row}, (3,))["a", "b"].data_ptr() != row.ctypes.data


def test_nested_rows_are_written():
    env = MultiAgentEnv(3)
    rows = {("agents", "observation"): np.ones((3, 2), "float32")}
    env.reset_into(rows)
    assert rows["agents", "observation"].tolist() == [[0, 0], [0, 1], [0, 2]]


def test_a_row_without_an_entry_is_named():
    with pytest.raises(KeyError, match="'other' is missing"):
        write({("other",): np.zeros(1)}, EpisodeStepEnv().reset())
