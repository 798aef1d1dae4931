import numpy as np
import pytest
import torch

from rl_slabs.rows.gather import PARALLEL_ITEMS, take_known_rows, take_rows

WORDS = np.arange(70).reshape(10, 7)


@pytest.mark.parametrize("index", [3, slice(2, 9, 3), torch.tensor([9, 0, 9]), torch.arange(0)])
def test_rows_are_copied(index):
    found = take_rows(WORDS, index)
    expected = WORDS[index.numpy() if isinstance(index, torch.Tensor) else index]
    assert np.array_equal(found, expected)
    assert not np.shares_memory(found, WORDS)


@pytest.mark.parametrize("count", [1, 3, PARALLEL_ITEMS // 7 + 5])
@pytest.mark.parametrize("bad", [-1, -10, 10])
def test_a_row_out_of_range_is_refused_however_many_there_are(count, bad):
    index = torch.zeros(count, dtype=torch.int64)
    index[count // 2] = bad
    with pytest.raises(ValueError, match=rf"rows must be in \[0, 10\), got .*{bad}"):
        take_rows(WORDS, index)


def test_many_rows_are_those_that_few_are():
    places = np.random.default_rng(0).integers(0, 10, PARALLEL_ITEMS // 7 + 5)
    assert np.array_equal(take_known_rows(WORDS, places), WORDS.take(places, 0))
