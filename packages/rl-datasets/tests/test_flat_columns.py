"""Episodes of columns that are written end to end."""

import numpy as np

from rl_datasets.flat_columns import bounds_of


def test_episodes_begin_after_rows_that_end_one():
    assert bounds_of(np.array([False, True, False])).tolist() == [0, 2, 3]
    assert bounds_of(np.array([True, False, True])).tolist() == [0, 1, 3]
