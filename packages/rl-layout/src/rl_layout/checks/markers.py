"""What flags, ids and steps say of each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rl_layout import keys
from rl_layout.checks.neighbours import MarkerRows
from rl_layout.checks.report import Finding
from rl_layout.segments.torch_cuts import cut_rows


def marker_findings(rows: MarkerRows) -> Iterator[Finding]:
    """Find contradictions between the markers of a batch."""
    if not rows.markers.can_cut:
        yield Finding("error", keys.IS_INIT, (), rows.size, "no marker tells trajectories apart")
    yield from _done_findings(rows)
    yield from _start_findings(rows)
    yield from _id_findings(rows)
    yield from _end_findings(rows)
    yield from _number_findings(rows)


def _done_findings(rows: MarkerRows) -> Iterator[Finding]:
    m = rows.markers
    if m.done is not None and m.terminated is not None and m.truncated is not None:
        broken = (m.done != (m.terminated | m.truncated)).cpu() & rows.real
        yield from rows.found("error", keys.NEXT_DONE, broken, "is not terminated or truncated")
    elif m.done is not None:
        part = m.terminated if m.terminated is not None else m.truncated
        key = keys.NEXT_TERMINATED if m.terminated is not None else keys.NEXT_TRUNCATED
        if part is not None:
            broken = (part & ~m.done).cpu() & rows.real
            yield from rows.found("error", key, broken, "is set where done is not")


def _start_findings(rows: MarkerRows) -> Iterator[Finding]:
    """Starts that is_init does not mark, and marks that are no starts."""
    m, pair = rows.markers, NeighbourPairs(rows)
    if m.is_init is not None:
        # real rows without the flag of a start
        bare = pair.unmarked & rows.real
        what = "is False where traj_step is 0: every reset marks its first step"
        yield from rows.found("error", keys.IS_INIT, bare & pair.first, what)
        what = "is False at the start of a slice"
        yield from rows.found("error", keys.IS_INIT, bare & rows.new_slice & ~pair.first, what)
        # without ids consecutive steps join neighbours; ids without steps join all of them
        joined = pair.follows if m.traj_ids is None else pair.same | (m.traj_step is None)
        after_done = bare & pair.ended & ~pair.first & joined
        yield from rows.found("error", keys.IS_INIT, after_done, "is False after a done step")
        if m.traj_step is None:
            other = bare & rows.paired & ~pair.same & ~pair.ended & ~rows.new_slice
            yield from rows.found("error", keys.IS_INIT, other, "is False at another id")
            return
        what = "is True in mid-trajectory: a start of a slice, or a reset that kept its id"
        inside = pair.marked & pair.joins & ~pair.ended & pair.follows
        yield from rows.found("note", keys.IS_INIT, inside, what)
    if m.traj_ids is not None and m.traj_step is not None:
        yield from _change_findings(rows, pair)


def _change_findings(rows: MarkerRows, pair: NeighbourPairs) -> Iterator[Finding]:
    """Changes to an id in mid-trajectory: rows laid end to end, or environments interleaved."""
    other = pair.unmarked & rows.paired & ~pair.same & ~pair.first & ~rows.new_slice
    again = other & _seen_before(rows)
    # most neighbours return to an earlier id: environments alternate along the last dimension
    interleaved = 2 * int(again.sum()) > int(rows.paired.sum())
    what = "continues an earlier row: environments lie interleaved; put time last"
    if interleaved:
        yield from rows.found("error", keys.TRAJ_IDS, again, what)
        return
    what = "another trajectory continues here: a cut, as where rows of [B, T] lie end to end"
    yield from rows.found("note", keys.TRAJ_IDS, other, what)


def _id_findings(rows: MarkerRows) -> Iterator[Finding]:
    """Ids that continue after a done step, and steps that leave a hole."""
    m, pair = rows.markers, NeighbourPairs(rows)
    if m.traj_ids is not None:
        after_done = pair.joins & pair.ended
        # a marked start that does not follow is a slice of a stored sample, as far as one can tell
        slices = pair.marked & ~(rows.after(pair.terminated) & pair.follows)
        slices &= m.traj_step is not None
        what = "continues after a done step: every trajectory, and every cut, takes a new id"
        yield from rows.found("error", keys.TRAJ_IDS, after_done & ~slices, what)
        what = "comes again after a done step: a slice of a sample, or a cut that kept its id"
        yield from rows.found("note", keys.TRAJ_IDS, after_done & slices, what)
    if m.traj_step is not None:
        jumped = pair.joins & ~pair.ended & ~pair.follows
        what = "leaves a hole inside a trajectory: rows were lost, or slices glued unmarked"
        if m.traj_ids is None:
            what = "jumps: a cut, or rows were lost"
            yield from rows.found("note", keys.TRAJ_STEP, jumped & ~pair.first & ~pair.marked, what)
            return
        yield from rows.found("error", keys.TRAJ_STEP, jumped & ~pair.marked, what)
        what = "begins again inside a trajectory: every reset takes a new id"
        yield from rows.found("error", keys.TRAJ_STEP, jumped & pair.marked & pair.first, what)


def _end_findings(rows: MarkerRows) -> Iterator[Finding]:
    """Steps of an id after its termination, and rows of n steps that reach past an end."""
    m = rows.markers
    far = m.steps_to_next_obs
    # bounded: corrupt counts must not wrap around where numbers of steps are added to them
    ahead = rows.flags(on=True).long() if far is None else far.cpu().clamp(max=2**31 - 1)
    if m.traj_ids is not None and m.traj_step is not None and m.terminated is not None:
        ids, step = m.traj_ids.cpu(), m.traj_step.cpu()
        # ids are sparse 64-bit numbers: numbered 0 .. S - 1 to index with
        numbers = torch.unique(ids, return_inverse=True)[1]
        ended = m.terminated.cpu() & rows.real & ~rows.lives
        last = torch.full((rows.size,), torch.iinfo(torch.int64).max, device="cpu")
        # the first step [N] at which any row says that the trajectory of a row terminated
        last = last.scatter_reduce(0, numbers[ended], (step + ahead - 1)[ended], "amin")[numbers]
        again = (
            rows.real & (step > last) & ~NeighbourPairs(rows).joins
        )  # neighbours are found above
        what = "continues after its termination in another row: ids are never reused"
        yield from rows.found("error", keys.TRAJ_IDS, again, what)
    if far is not None and m.can_cut:
        ends = torch.where(rows.boundary & rows.real, rows.places, rows.size)
        # the next boundary at or after each row: a running minimum from the end
        nearest = ends.flip(0).cummin(0).values.flip(0)
        cuts = torch.where(cut_rows(m).cpu(), rows.places, rows.size)
        nearest_cut = cuts.flip(0).cummin(0).values.flip(0)
        reached = rows.places + ahead - 1
        # after a cut that precedes the boundary is another segment: such rows are not judged
        past = rows.real & (nearest == nearest_cut) & (reached > nearest)
        what = "reaches past the end of its trajectory: count the steps up to the end"
        yield from rows.found("error", keys.STEPS_TO_NEXT_OBS, past, what)


def _number_findings(rows: MarkerRows) -> Iterator[Finding]:
    """Numbers outside their range, and padding that is not numbered -1."""
    m = rows.markers
    if m.traj_ids is not None:
        padding = m.traj_ids.cpu() == keys.PADDING_ID
        what = "is -1 on a real step: -1 is padding, which the mask must say"
        yield from rows.found("error", keys.TRAJ_IDS, padding & rows.real, what)
        what = "is not -1 on padding"
        yield from rows.found("error", keys.TRAJ_IDS, ~padding & ~rows.real, what)
    if m.traj_step is not None:
        negative = (m.traj_step.cpu() < 0) & rows.real
        yield from rows.found("error", keys.TRAJ_STEP, negative, "is negative")
    if m.steps_to_next_obs is not None:
        low = (m.steps_to_next_obs.cpu() < 1) & rows.real
        yield from rows.found("error", keys.STEPS_TO_NEXT_OBS, low, "is less than 1")


class NeighbourPairs:
    """What the markers say of each row and the one before it, bool ``[N]`` each."""

    # A marker that is absent says nothing: ids are then the same, steps follow, and nothing is
    # marked.

    def __init__(self, rows: MarkerRows) -> None:
        m, none = rows.markers, rows.flags()
        self.marked = none if m.is_init is None else m.is_init.cpu()
        self.unmarked = ~self.marked
        self.first = none if m.traj_step is None else (m.traj_step == 0).cpu()
        self.same = ~none if m.traj_ids is None else ~rows.changed(m.traj_ids)
        self.follows = ~none if m.traj_step is None else ~rows.changed(m.traj_step, 1)
        self.ended = rows.paired & rows.after(rows.boundary)
        self.terminated = none if m.terminated is None else m.terminated.cpu()
        self.joins = rows.paired & self.same & ~rows.new_slice & ~rows.after(rows.lives)


def _seen_before(rows: MarkerRows) -> Tensor:
    """Rows whose id an earlier row has already, bool ``[N]``."""
    ids = rows.markers.traj_ids
    if ids is None:
        return rows.flags()
    numbers = torch.unique(ids.cpu(), return_inverse=True)[1]
    # the first row of each id, by its number
    return rows.first_of(numbers, rows.places)[numbers] < rows.places
