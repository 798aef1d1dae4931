"""The cuts between rows by operations on whole tensors, on any device, also in compiled code."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout.segments.markers import ENDS, Markers, arrays_of, cut_between, cut_on_cpu, ends_of


def cut_rows(markers: Markers, contradicted: Tensor | None = None) -> Tensor:
    """Find the rows whose successor does not continue them."""
    if markers.some().device.type == "cpu" and not torch.compiler.is_dynamo_compiling():
        found = cut_on_cpu(arrays_of(markers), markers.batch_shape, contradicted)
        return torch.from_numpy(found)
    return cut_by_torch(markers, contradicted)


def cut_by_torch(markers: Markers, contradicted: Tensor | None = None) -> Tensor:
    """The cuts by operations on whole tensors, on any device, bool ``[N]`` in own memory."""
    cut = _inner_cuts(markers)
    if contradicted is not None:
        cut |= contradicted
    # [*B, T]: the row of another environment continues nothing
    cut.view(-1, markers.batch_shape[-1])[:, -1].fill_(True)
    return cut


def find_runs(
    markers: Markers, contradicted: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """List the runs of real rows that belong together, and say how each ends."""
    starts, lasts = runs(cut_rows(markers, contradicted), markers.mask)
    return starts, lasts, lasts - starts + 1, end_kinds(markers, lasts)


def _inner_cuts(markers: Markers) -> Tensor:
    """The cuts that markers make, bool ``[N]``; ends of rows of the batch are not among them."""
    boundary = markers.boundary()
    cut = torch.zeros_like(markers.some(), dtype=torch.bool) if boundary is None else boundary
    alike = [marker for marker in (markers.traj_ids, markers.mask) if marker is not None]
    cut_between(
        cut[:-1],  # place i cuts between rows i and i + 1; a view, so `cut` gets every flag
        (slice(None, -1), slice(1, None)),
        alike=alike,
        step=markers.traj_step,
        is_init=markers.is_init,
    )
    return cut


def runs(cut: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """List the runs of real rows between cuts, with one device synchronisation."""
    if mask is None:
        lasts = cut.nonzero()[:, 0]
        starts = torch.zeros_like(lasts)
        # without padding each run begins after the last row of the one before
        torch.add(lasts[:-1], 1, out=starts[1:])
        return starts, lasts
    is_start = mask.clone()
    is_start[1:] &= cut[:-1]
    both = torch.cat([is_start, cut & mask]).nonzero()[:, 0]  # as many starts as lasts
    starts, lasts = both.view(2, -1)
    return starts, lasts - len(cut)


def end_kinds(markers: Markers, lasts: Tensor) -> Tensor:
    """Say how each run ends: 2 terminated, 1 truncated, 0 cut."""
    # A done flag without its kind is completed: where only done is there it is a termination, and
    # what done has beyond one kind is the other.
    names = (*ENDS, "steps_to_next_obs")
    there = {name: getattr(markers, name) for name in names}
    ends, terminated = ends_of({k: v[lasts] for k, v in there.items() if v is not None})
    if ends is None:
        return torch.zeros_like(lasts, dtype=torch.uint8)
    made: Tensor = ends.to(torch.uint8) + terminated.to(torch.uint8)
    return made
