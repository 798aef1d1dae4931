"""Spaces of missions, as MiniGrid has them: texts that a function makes."""

from __future__ import annotations

import string
from typing import Any

from gymnasium import spaces

from rl_envs.gym.spaces.tree import Space

CHARACTERS = "".join(sorted(string.printable[:95]))  # of ASCII, without tabs and line ends
LONGEST = 256
"""Room for missions of which the space does not tell how long they become."""


def with_texts(space: Space) -> Space:
    """Replace the spaces of missions in a space by `Text` spaces with room for the longest."""
    # known by what they have: MiniGrid is not imported
    if isinstance(space, spaces.Dict):
        parts = {name: with_texts(part) for name, part in space.spaces.items()}
        same = all(parts[name] is part for name, part in space.spaces.items())
        return space if same else spaces.Dict(parts)
    make: Any = getattr(space, "mission_func", None)
    if make is None:
        return space
    choices = getattr(space, "ordered_placeholders", None)
    room = LONGEST  # a class derived from theirs may hold any mission, whatever the function makes
    if type(space).__name__ == "MissionSpace":
        longest = [max(words, key=len) for words in choices or ()]
        room = len(make(*longest))
    return spaces.Text(room, min_length=0, charset=CHARACTERS)
