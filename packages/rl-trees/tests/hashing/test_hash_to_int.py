from __future__ import annotations

import pytest
import torch

from rl_trees import HashToInt


def test_hashes_are_numbered_in_the_order_in_which_they_come():
    numbers = HashToInt()
    assert numbers(torch.tensor([[9, -1], [9, 2**62]])).tolist() == [[0, 1], [0, 2]]
    assert numbers(torch.tensor([4, -1])).tolist() == [3, 1]
    assert len(numbers) == 4


def test_unknown_hashes_are_an_error_unless_a_default_is_given():
    numbers = HashToInt()
    numbers(torch.tensor([5]))
    with pytest.raises(KeyError, match="1 of 2 hashes are unknown, the first at index 1"):
        numbers(torch.tensor([5, 6]), extend=False)
    assert numbers(torch.tensor([5, 6]), extend=False, default=-7).tolist() == [0, -7]
    assert len(numbers) == 1


def test_state_dict_restores_the_numbers():
    numbers, other = HashToInt(), HashToInt()
    numbers(torch.tensor([5, 3, 8]))
    other(torch.tensor([1]))
    other.load_state_dict(numbers.state_dict())
    assert other(torch.tensor([8, 3, 5, 1])).tolist() == [2, 1, 0, 3]
    numbers.clear()
    assert len(numbers) == 0


@pytest.mark.parametrize("hashes", [[1, 2], torch.zeros(2), torch.ones(2, dtype=torch.bool)])
def test_what_is_no_hash_is_named(hashes):
    numbers = HashToInt()
    numbers(torch.tensor([5]))
    with pytest.raises(TypeError, match="hashes: expected a tensor of int64"):
        numbers(hashes)
    with pytest.raises(TypeError, match="state: expected a tensor of int64"):
        numbers.set_extra_state(hashes)
    assert len(numbers) == 1
