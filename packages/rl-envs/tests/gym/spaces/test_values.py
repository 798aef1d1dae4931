"""Rows as values of spaces: batches of choices, and copies of what environments keep."""

import numpy as np
import pytest
from gymnasium import spaces

from rl_envs.gym.spaces.values import batch_reader_of_space


@pytest.mark.parametrize(("start", "choices"), [(0, [2, 0]), (5, [7, 5])])
def test_batch_reader_reads_one_hot_rows_as_choices(start, choices):
    read = batch_reader_of_space(spaces.Discrete(3, start=start), one_hot=True)
    assert read(np.eye(3)[[2, 0]] > 0).tolist() == choices


def test_batch_reader_copies_rows():
    rows = np.ones((3, 2), "float32")
    found = batch_reader_of_space(spaces.Box(0, 1, (2,)), one_hot=False)(rows)
    rows[...] = 0
    assert found.min() == 1


def test_batch_reader_returns_texts_as_a_tuple():
    read = batch_reader_of_space(spaces.Text(3, charset="ab"), one_hot=False)
    assert read(np.array([[1, 2, 0], [2, 0, 0]])) == ("ab", "b")
