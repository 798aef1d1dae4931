import numpy as np
import pytest
import torch

from rl_slabs.rows.gather import PARALLEL_ITEMS, take_known_rows, take_rows, zeroed

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


@pytest.mark.parametrize("nbytes", [1, 4097, (1 << 21) + 3])
def test_new_memory_is_zero_writable_and_on_a_page(nbytes):
    memory = zeroed(nbytes)
    assert memory.shape == (nbytes,)
    assert not memory.any()
    assert memory.ctypes.data % 4096 == 0
    memory[-1] = 1


def test_promised_memory_lies_behind_the_new_one():
    memory = zeroed(5000, promised=1 << 44)
    assert memory.shape == (5000 + (1 << 44),)
    memory[5000] = 1
    assert memory[:5002].tolist() == [0] * 5000 + [1, 0]
