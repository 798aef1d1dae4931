"""Texts of Gymnasium as numbers, so that they are in batches like everything else."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from rl_specs import Categorical
from rl_tensordict.arguments import check_type
from rl_tensordict.types import Array

END = 0
"""The number after the last character of a text."""


class Alphabet:
    """The characters of a `Text` space as numbers: 1 for the first of them in order, and so on.

    Args:
        space: of the texts.

    Attributes:
        space: the same.
        characters: sorted; that at place i has number i + 1.

    Example:
        >>> letters = Alphabet(spaces.Text(5, charset="abc"))
        >>> letters.numbers_of("cab").tolist()
        [3, 1, 2, 0, 0]
        >>> letters.text_of(torch.tensor([3, 1, 2, 0, 1]))
        'cab'
    """

    def __init__(self, space: spaces.Text) -> None:
        check_type("space", space, spaces.Text, "a Text space of Gymnasium")
        self.space = space
        self.characters = space.characters
        self._numbers = {character: i + 1 for i, character in enumerate(self.characters)}

    @property
    def spec(self) -> Categorical:
        """int64 `[max_length]`, 0 after the end. No text is shorter than the space's shortest."""
        n, room = len(self.characters) + 1, self.space.max_length
        mask = torch.ones(room, n, dtype=torch.bool, device="cpu")
        mask[: self.space.min_length, END] = False
        return Categorical(n, (room,), device="cpu", mask=mask if self.space.min_length else None)

    def numbers_of(self, text: str) -> Array:
        """Write a text as numbers.

        Args:
            text: of the space.

        Returns:
            int64 `[max_length]`.

        Raises:
            ValueError: the text is too long, too short, or has other characters.
        """
        least, most = self.space.min_length, self.space.max_length
        if not (set(text) <= self._numbers.keys() and least <= len(text) <= most):
            msg = f"expected {least} to {most} of the characters {self.characters!r}: got {text!r}."
            raise ValueError(msg)
        found = np.full(most, END, np.int64)
        found[: len(text)] = [self._numbers[character] for character in text]
        return found

    def text_of(self, numbers: Array | torch.Tensor) -> str:
        """Read numbers as a text.

        Args:
            numbers: `[max_length]`; those after the first 0 do not count.

        Returns:
            The text.
        """
        listed = numbers.tolist()
        known = listed[: listed.index(END)] if END in listed else listed
        return "".join(self.characters[number - 1] for number in known)
