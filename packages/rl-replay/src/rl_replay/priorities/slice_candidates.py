"""Rows of which a sampler is to find out whether slices can begin with them."""

from __future__ import annotations


class SliceCandidates:
    """Rows whose place in their trajectory has changed, by the reason; the sampler clears them."""

    def __init__(self) -> None:
        self.new: list[tuple[int, int]] = []  # row ids that were taken in, from and up to
        self.mended: list[int] = []  # row ids whose word was lost and written anew
        self.heads: list[int] = []  # row ids whose predecessor was overwritten
        self.keeps_heads = False  # whether the sampler asks for these

    def clear(self) -> None:
        """Forgets all of them."""
        for rows in (self.new, self.mended, self.heads):
            rows.clear()

    def add_new(self, begin: int, end: int, lane_size: int) -> None:
        """Adds rows to `new`, whose ranges stay as few as the lanes where no sampler clears it."""
        for place, (first, stop) in enumerate(self.new):
            if stop == begin:
                self.new[place] = max(first, end - lane_size), end
                return
        self.new.append((begin, end))
