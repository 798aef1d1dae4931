import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_envs import Alphabet


def test_texts_come_back_from_their_numbers():
    space = spaces.Text(7, min_length=0, charset="go left")
    space.seed(3)
    letters = Alphabet(space)
    for _ in range(50):
        text = space.sample()
        numbers = letters.numbers_of(text)
        assert letters.spec.is_in(torch.from_numpy(numbers))
        assert letters.text_of(numbers) == text


def test_characters_are_numbered_in_their_own_order():
    letters = Alphabet(spaces.Text(4, charset="cab"))
    assert letters.characters == "abc"
    assert letters.numbers_of("cb").tolist() == [3, 2, 0, 0]


def test_random_numbers_are_texts_of_the_space():
    space = spaces.Text(5, min_length=2, charset="ab")
    letters = Alphabet(space)
    texts = [letters.text_of(numbers) for numbers in letters.spec.rand((200,))]
    assert all(space.contains(text) for text in texts)
    assert {len(text) for text in texts} == {2, 3, 4, 5}


def test_an_empty_text_needs_a_space_that_has_it():
    assert Alphabet(spaces.Text(3, min_length=0, charset="ab")).text_of(np.zeros(3)) == ""
    with pytest.raises(ValueError, match="expected 1 to 3 of the characters 'ab': got ''"):
        Alphabet(spaces.Text(3, charset="ab")).numbers_of("")


@pytest.mark.parametrize("text", ["abba", "abc"])
def test_texts_that_are_too_long_or_strange_are_refused(text):
    with pytest.raises(ValueError, match=f"expected 1 to 3 of the characters 'ab': got '{text}'"):
        Alphabet(spaces.Text(3, charset="ab")).numbers_of(text)
