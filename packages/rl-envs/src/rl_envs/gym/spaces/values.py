"""Values of leaf spaces, converted to and from numpy rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_envs.gym.spaces.tree import Space
from rl_envs.gym.text import Alphabet
from rl_tensordict.types import Array


def writer_of_space(space: Space, key: tuple[str, ...]) -> Callable[[Array, Any], None]:
    """Return a function that writes a value of a leaf space into a row, of the same shape."""
    # both may have leading dimensions, as those of a vector have
    if isinstance(space, spaces.Text):
        return _text_writer(space)
    start: Any = getattr(space, "start", 0)
    has_start = bool(np.any(start))

    def write(row: Array, value: Any) -> None:
        shape = value.shape if isinstance(value, np.ndarray) else np.shape(value)
        if shape != row.shape:
            msg = f"{key[-1] if len(key) == 1 else key!r}: expected shape {row.shape}, got {shape}."
            raise ValueError(msg)
        row[...] = value - start if has_start else value
        if row.dtype.kind in "iub" and not has_start and _is_rounded(row, value):
            found = np.asarray(value)
            msg = (
                f"{key[-1] if len(key) == 1 else key!r}: expected {row.dtype} as the space says, "
                f"got {found.dtype} from {found.min()} to {found.max()}, which it cannot hold. "
                f"Return {row.dtype}, or give the space dtype {found.dtype}."
            )
            raise TypeError(msg)

    return write


def _is_rounded(row: Array, value: Any) -> bool:
    """Whether a row holds other numbers than the value of another dtype that was written to it."""
    if not isinstance(value, np.ndarray) or value.dtype == row.dtype:
        return False
    return not np.can_cast(value.dtype, row.dtype, "safe") and bool((row != value).any())


def is_copied(space: Space) -> bool:
    """Whether a value of a leaf space is written as it is: no text, and no numbers to shift."""
    return not isinstance(space, spaces.Text) and not np.any(getattr(space, "start", 0))


def _text_writer(space: spaces.Text) -> Callable[[Array, Any], None]:
    alphabet = Alphabet(space)

    def write(row: Array, value: Any) -> None:
        if isinstance(value, str):
            row[...] = alphabet.numbers_of(value)
            return
        for one, text in zip(row, value, strict=True):  # a vector gives a tuple of texts
            one[...] = alphabet.numbers_of(text)

    return write


def batch_reader_of_space(space: Space, *, one_hot: bool) -> Callable[[Array], Any]:
    """Return a function that converts rows `[B, ...]` into a batch of values of a leaf space."""
    # always a copy, because environments keep actions; a batch of texts is a tuple
    if isinstance(space, spaces.Text):
        alphabet = Alphabet(space)
        return lambda rows: tuple(alphabet.text_of(row) for row in rows)
    dtype = space.dtype
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return lambda rows: np.array(rows, dtype)
    start: Any = space.start
    if isinstance(space, spaces.Discrete) and one_hot:
        if not start:
            return lambda rows: rows.argmax(-1).astype(dtype, copy=False)
        return lambda rows: (rows.argmax(-1) + start).astype(dtype)
    if isinstance(space, spaces.MultiDiscrete) and one_hot and space.nvec.ndim == 1:
        cuts = np.cumsum(space.nvec)[:-1]
        return lambda rows: (
            np.stack([part.argmax(-1) for part in np.split(rows, cuts, -1)], -1) + start
        ).astype(dtype)
    return lambda rows: (rows + start).astype(dtype)
