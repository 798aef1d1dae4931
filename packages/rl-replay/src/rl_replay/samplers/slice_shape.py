"""How many slices of how many rows a batch has, and how far they may reach out of trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Self

SliceSpan = bool | int | tuple[bool | int, bool | int]


@dataclass(frozen=True)
class SliceShape:
    """How a batch is cut into slices; at least one of the two is given."""

    num_slices: int | None = None  # Slices of a batch
    slice_len: int | None = None  # Rows of a slice

    def __post_init__(self) -> None:
        both = {"num_slices": self.num_slices, "slice_len": self.slice_len}
        given = {name: _integer(value, name) for name, value in both.items() if value is not None}
        if not given:
            raise TypeError("a slice sampler needs num_slices, slice_len, or both: got neither.")
        for name, value in given.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1: got {value}.")

    def of(self, batch_size: int) -> tuple[int, int]:
        """The slices of a batch, and the rows of each."""
        count, length = self.num_slices, self.slice_len
        if count is not None and length is not None:
            if count * length != batch_size:
                raise ValueError(
                    f"{count} slices of {length} rows make a batch of {count * length}, not of "
                    f"{batch_size}. Ask for that batch size, or leave out num_slices or slice_len."
                )
            return count, length
        part, name = (count, "num_slices") if count is not None else (length, "slice_len")
        assert part is not None  # one of the two is given
        if batch_size < 1 or batch_size % part:
            raise ValueError(
                f"the batch size must be a multiple of {name}: got {batch_size} and {part}. Use "
                f"{max(batch_size // part, 1) * part}."
            )
        other = batch_size // part
        return (part, other) if count is not None else (other, part)


@dataclass(frozen=True)
class SpanLimits:
    """How many rows of a slice may be outside its trajectory; they are left out."""

    left: int = 0  # Before the first row
    right: int = 0  # After the last row

    @classmethod
    def of(cls, span: SliceSpan, slice_len: int) -> Self:
        """What the argument `span` of a slice sampler means."""
        if not span and not isinstance(span, tuple):
            return cls()
        pair = span if isinstance(span, tuple) else (span, span)
        if len(pair) != 2 or not all(isinstance(side, int) for side in pair):
            raise TypeError(f"span is a bool, an integer or a pair of such: got {span!r}.")
        sides = [(slice_len - 1) if side is True else int(side) for side in pair]
        if min(sides) < 0 or max(sides) >= slice_len:
            raise ValueError(
                f"span must be in [0, {slice_len}), so that one row of {slice_len} is left: got "
                f"{span!r}."
            )
        return cls(*sides)


def _integer(value: int, name: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}.") from None
