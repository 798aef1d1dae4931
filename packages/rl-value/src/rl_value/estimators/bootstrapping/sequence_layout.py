"""The sequence of slots for all observations of a batch, rows and next ones, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from rl_layout import Segments, keys
from rl_layout.internals import flatten
from rl_tensordict.types import KeyPath

Inputs = dict[KeyPath, Tensor]
InputLeaf = tuple[KeyPath, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class UnrollLayout:
    """Slots of observations in the flat sequence that a network reads once."""

    # Rows of a segment follow each other, and after them come the next observations that are no row
    # of the segment: one for plain steps, up to n for n-step rows. So a recurrent network continues
    # into them from the state it is in.

    source: Tensor  # int64 [K], the real row that each slot is taken from
    is_next: Tensor  # bool [K], whether the slot holds that row's next observation
    is_start: Tensor  # bool [K], first slot of a segment
    row_slot: Tensor  # int64 [M], slot of each real row
    next_slot: Tensor  # int64 [M], slot of each real row's next observation
    in_budget: Tensor | None = None  # bool [M], rows with room for what they need; None if all have
    # whether steps are missing before some next observation, as after a slice of n-step rows that
    # is shorter than n
    has_holes: bool = False

    def __len__(self) -> int:
        return self.source.shape[0]

    @property
    def needs_extra(self) -> Tensor:
        """Rows whose next observation is no row of their segment, bool ``[M]``."""
        return self.is_next[self.next_slot]

    def cut_to(self, rows_of: Tensor, room: int, terminated: Tensor) -> UnrollLayout:
        """Keep the first slots of each row of the batch, as many as there is room for."""
        row = rows_of[self.source]  # int64 [K], the row of the batch of each slot
        first = torch.searchsorted(row, row)  # rows of the batch are in order
        kept = torch.arange(len(self), device=row.device) - first < room
        place = kept.cumsum(0) - 1  # new number of each slot that is kept
        # a terminated step needs no next value, so its own slot is enough
        in_budget = kept[self.row_slot] & (terminated | kept[self.next_slot])
        return UnrollLayout(
            self.source[kept],
            self.is_next[kept],
            self.is_start[kept],
            torch.where(kept[self.row_slot], place[self.row_slot], 0),
            torch.where(kept[self.next_slot], place[self.next_slot], 0),
            in_budget,
        )

    def filled_to(self, size: int) -> UnrollLayout:
        """Repeat the first slot after the last one, each time as a segment of its own."""
        # no step points at the added slots, so their values are never read
        more = size - len(self)
        if more <= 0 or not len(self):
            return self
        first = torch.zeros(more, dtype=torch.int64, device=self.source.device)
        return replace(
            self,
            source=torch.cat([self.source, self.source[first]]),
            is_next=torch.cat([self.is_next, self.is_next[first]]),
            is_start=torch.cat([self.is_start, self.is_start[first]]),
        )

    def chunks(self, size: int) -> list[tuple[int, int]]:
        """Divide the slots into runs of whole segments."""
        if not len(self):
            return [(0, 0)]
        starts = [*self.is_start.nonzero()[:, 0].tolist(), len(self)]
        cuts = [0]
        # a chunk ends before the segment that would make it longer than size; a segment that is
        # longer by itself is a chunk of its own
        for here, following in zip(starts[1:], [*starts[2:], None], strict=True):
            if following is None or following - cuts[-1] > size:
                cuts.append(here)
        return list(pairwise(cuts))


def one_step_slots(segments: Segments, *, after_terminated: bool = True) -> UnrollLayout:
    """Lay out plain steps: each segment, and the last next observation of each."""
    device, count = segments.starts.device, segments.num_real
    has_extra = torch.ones(len(segments), dtype=torch.bool, device=device)
    if not after_terminated:
        has_extra = segments.kinds != 2
    # exclusive sum: slots that the segments before add to the number of a row
    extras_before = has_extra.cumsum(0) - has_extra.to(torch.int64)
    row_slot = torch.arange(count, device=device) + segments.spread(extras_before)
    lasts = segments.offsets[1:] - 1
    extra_row = lasts[has_extra]
    extra_slot = row_slot[extra_row] + 1
    next_slot = row_slot + 1
    if not after_terminated:  # what is not there points at the row itself
        next_slot[lasts[~has_extra]] -= 1
    starts = row_slot[segments.offsets[:-1]]
    return _assemble(row_slot, next_slot, (extra_row, extra_slot), starts)


def n_step_slots(segments: Segments, steps: Tensor, lost: Tensor | None = None) -> UnrollLayout:
    """Lay out n-step rows: each segment, and every next observation that comes after it."""
    device, count = segments.starts.device, segments.num_real
    numbers = torch.arange(count, device=device)  # int64 [M], as are ahead and beyond
    segment = segments.spread(torch.arange(len(segments), device=device))
    ahead = numbers + steps
    beyond = ahead - segments.offsets[1:][segment]  # 0 for the one right after the segment
    outside = beyond >= 0
    # one number for each pair of segment and distance after it, in the order of time, so that
    # rows that share a next observation share its slot
    reach = int(steps.max()) + 1 if count else 1
    places, which = torch.unique(
        segment[outside] * reach + beyond[outside], sorted=True, return_inverse=True
    )
    extra_segment = places // reach
    # extra slots of each segment, then the number of those before it [S]
    per_segment = torch.bincount(extra_segment, minlength=len(segments))
    before = per_segment.cumsum(0) - per_segment
    rank = torch.arange(len(places), device=device)
    row_slot = numbers + segments.spread(before)
    extra_slot = segments.offsets[1:][extra_segment] + rank
    # distances after a segment are 0, 1, 2, ... unless steps are missing between them
    has_holes = bool((places % reach != rank - before[extra_segment]).any())
    # of the rows that share a next observation the last one gives it; a row that lost its own
    # ranks below every other, so it gives one only where none has it
    rank_of = numbers if lost is None else numbers + count * ~lost
    best = torch.zeros_like(places).scatter_reduce_(0, which, rank_of[outside], "amax")
    extra_row = best % max(count, 1)
    next_slot = row_slot[ahead.clamp(max=count - 1)]
    next_slot[outside] = extra_slot[which]
    starts = row_slot[segments.offsets[:-1]]
    made = _assemble(row_slot, next_slot, (extra_row, extra_slot), starts)
    return replace(made, has_holes=has_holes)


def _assemble(
    row_slot: Tensor, next_slot: Tensor, extras: tuple[Tensor, Tensor], starts: Tensor
) -> UnrollLayout:
    extra_row, extra_slot = extras
    size = len(row_slot) + len(extra_row)
    source = torch.empty(size, dtype=torch.int64, device=row_slot.device)
    source[row_slot] = torch.arange(len(row_slot), device=row_slot.device)
    source[extra_slot] = extra_row
    is_next = torch.zeros(size, dtype=torch.bool, device=row_slot.device)
    is_next[extra_slot] = True
    is_start = torch.zeros_like(is_next)
    is_start[starts] = True
    return UnrollLayout(source, is_next, is_start, row_slot, next_slot)


class SlotReader:
    """Reads the inputs of a network from a batch, slot by slot."""

    # leaves: key, leaf [*B, T, ...] at the root, and the same under "next"; is_init has neither
    # stand_in: bool [M], rows whose next observation is replaced by their own; None if every
    # one is real
    def __init__(
        self,
        leaves: list[InputLeaf],
        segments: Segments,
        slots: UnrollLayout,
        stand_in: Tensor | None,
    ) -> None:
        self.leaves = leaves
        self.slots = slots
        self.rows = segments.rows if segments.has_gaps else None
        # bool [K], slots that hold a next observation that is there to be read
        self.real_next = (
            slots.is_next if stand_in is None else (slots.is_next & ~stand_in[slots.source])
        )
        self.batch_shape = segments.batch_shape

    def inputs(self, chunk_size: int | None = None) -> Iterator[tuple[Inputs, int]]:
        """Read all slots, or chunks of whole segments; segments start where `is_init` is set."""
        size = len(self.slots)
        if not size:  # networks cannot read nothing: one row of zeros, whose output is not used
            none = self._read(0, 0)
            yield {key: leaf.new_zeros(1, *leaf.shape[1:]) for key, leaf in none.items()}, 1
            return
        for start, stop in [(0, size)] if chunk_size is None else self.slots.chunks(chunk_size):
            yield self._read(start, stop), stop - start

    def _read(self, start: int, stop: int) -> Inputs:
        source = self.slots.source[start:stop]
        rows = source if self.rows is None else self.rows[source]
        places = self.real_next[start:stop].nonzero()[:, 0]
        following = rows[places]
        first = self.slots.is_start[start:stop, None]
        made: Inputs = {(keys.IS_INIT,): first}
        for key, root, ahead in self.leaves:
            if root is None:
                made[key] = first
                continue
            leaf = _taken(root, self.batch_shape, rows)
            if ahead is not None:
                real = _taken(ahead, self.batch_shape, following)
                leaf.index_copy_(0, places, real.to(leaf.dtype))
            made[key] = leaf
        return made


def _taken(leaf: Tensor, batch_shape: torch.Size, rows: Tensor) -> Tensor:
    """Rows of a leaf ``[*B, T, ...]`` by their numbers; of the others nothing is copied."""
    if leaf.is_contiguous():
        return flatten(leaf, batch_shape).index_select(0, rows)
    return leaf[torch.unravel_index(rows, batch_shape)]
