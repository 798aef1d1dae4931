"""What flags, ids and steps say of one another."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rl_layout import keys
from rl_layout.report import Finding
from rl_layout.rows import Rows


def marker_findings(rows: Rows) -> Iterator[Finding]:
    """Find contradictions between the markers of a batch.

    Args:
        rows: the rows of the batch.

    Yields:
        Each contradiction once, with its first row and their number.

    Example:
        >>> from rl_layout.markers import Markers
        >>> from rl_layout.synthetic import trajectories
        >>> list(marker_findings(Rows(Markers.of(trajectories([2, 3])))))
        []
    """
    if not rows.markers.can_cut:
        yield Finding("error", keys.IS_INIT, (), rows.size, "no marker tells trajectories apart")
    yield from _done_findings(rows)
    yield from _start_findings(rows)
    yield from _id_findings(rows)
    yield from _number_findings(rows)


def _done_findings(rows: Rows) -> Iterator[Finding]:
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


def _start_findings(rows: Rows) -> Iterator[Finding]:
    """Starts that is_init does not mark, and marks that are no starts."""
    m = rows.markers
    if m.is_init is None:
        return
    fresh, marked = ~m.is_init.cpu() & rows.real, m.is_init.cpu() & rows.paired
    same = _same_id(rows)
    unknown = m.traj_step is None  # nothing tells a start from a row that goes on elsewhere
    if m.traj_step is not None:
        zero = m.traj_step.cpu() == 0
        what = "is False where traj_step is 0: every reset marks its first step"
        yield from rows.found("error", keys.IS_INIT, fresh & zero, what)
        fresh = fresh & ~zero
    ended = rows.paired & rows.after(rows.boundary)
    broken = fresh & ended & (same | unknown)
    yield from rows.found("error", keys.IS_INIT, broken, "is False behind a done step")
    broken = fresh & rows.new_slice
    yield from rows.found("error", keys.IS_INIT, broken, "is False at the start of a slice")
    if m.traj_ids is not None:
        other = fresh & rows.paired & ~same & ~rows.new_slice
        if unknown:
            yield from rows.found("error", keys.IS_INIT, other & ~ended, "is False at another id")
        else:
            what = "another trajectory goes on here: a cut, as where rows of [B, T] lie end to end"
            again = other & _seen_before(rows)
            yield from rows.found("note", keys.TRAJ_IDS, other & ~again, what)
            what = "goes on from an earlier row: environments lie interleaved; put time last"
            yield from rows.found("error", keys.TRAJ_IDS, again, what)
    if m.traj_step is not None:
        inside = marked & same & ~rows.changed(m.traj_step, 1) & ~rows.after(rows.boundary)
        what = "is True in mid-trajectory: a start of a slice, or a reset that kept its id"
        yield from rows.found("note", keys.IS_INIT, inside & ~rows.new_slice, what)


def _id_findings(rows: Rows) -> Iterator[Finding]:
    """Ids that go on behind a done step, and steps that leave a hole."""
    m = rows.markers
    if m.traj_ids is None:
        return
    same = rows.paired & _same_id(rows) & ~rows.new_slice
    ended = same & rows.after(rows.boundary)
    marked = torch.zeros_like(same) if m.is_init is None else m.is_init.cpu()
    jumped = again = torch.zeros_like(same)
    if m.traj_step is not None:
        jumped = same & rows.changed(m.traj_step, 1)
        # a marked start at another step than the first is a slice of a stored sample
        again = jumped & marked & (m.traj_step != 0).cpu()
    what = "goes on behind a done step: every trajectory, and every cut, takes a new id"
    yield from rows.found("error", keys.TRAJ_IDS, ended & ~again, what)
    what = "leaves a hole inside a trajectory: rows were lost, or slices glued unmarked"
    yield from rows.found("error", keys.TRAJ_STEP, jumped & ~ended & ~marked, what)


def _number_findings(rows: Rows) -> Iterator[Finding]:
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


def _same_id(rows: Rows) -> Tensor:
    """Rows whose id is the one before them; all where there are no ids."""
    ids = rows.markers.traj_ids
    return torch.ones(rows.size, dtype=torch.bool) if ids is None else ~rows.changed(ids)


def _seen_before(rows: Rows) -> Tensor:
    """Rows whose id stands in an earlier row already, bool ``[N]``."""
    ids = rows.markers.traj_ids
    if ids is None:
        return torch.zeros(rows.size, dtype=torch.bool)
    numbers = torch.unique(ids.cpu(), return_inverse=True)[1]
    places = torch.arange(rows.size)
    first = torch.full((rows.size,), rows.size).scatter_reduce(0, numbers, places, "amin")
    return first[numbers] < places
