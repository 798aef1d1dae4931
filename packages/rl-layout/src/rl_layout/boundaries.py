"""From markers to the runs of rows that belong together: the one place that applies rule 2.

Row j continues row i if and only if both are real, their ids are equal, j's step is one more,
j is not ``is_init`` and i is no boundary. Any marker that cuts, cuts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_layout.markers import FIELDS, Markers
from rl_layout.views import array_of

PIECE = 32_768


def cut_rows(markers: Markers) -> Tensor:
    """Find the rows whose successor does not continue them.

    Args:
        markers: the markers of a batch.

    Returns:
        bool ``[N]``, True where row i + 1 does not continue row i, and at every row end.

    Raises:
        KeyError: there is no marker at all.

    Example:
        >>> flag = torch.tensor([False, False, True])
        >>> cut_rows(Markers(torch.Size([3]), is_init=flag)).tolist()
        [False, True, True]
    """
    first = _any_of(markers)
    if first.device.type == "cpu":
        cut = torch.from_numpy(_cut_in_pieces(markers, len(first)))
    else:
        cut = _cut_whole(markers, first)
    cut.view(-1, markers.batch_shape[-1])[:, -1] = True
    return cut


def _any_of(markers: Markers) -> Tensor:
    """Some marker ``[N]`` that tells trajectories apart."""
    kinds = (markers.done, markers.terminated, markers.truncated)
    others = (markers.is_init, markers.traj_ids, markers.traj_step)
    some = next((marker for marker in (*kinds, *others) if marker is not None), None)
    if some is None:
        names = [str(key) for key, _, _ in FIELDS.values()]
        msg = f"no marker tells the trajectories apart: expected one of {', '.join(names[:6])}."
        raise KeyError(msg)
    return some


def _cut_whole(markers: Markers, like: Tensor) -> Tensor:
    """The cuts by operations on whole arrays, bool ``[N]`` in memory of their own."""
    boundary = markers.boundary()
    cut = torch.zeros_like(like, dtype=torch.bool) if boundary is None else boundary
    inner = cut[:-1]
    if markers.is_init is not None:
        inner |= markers.is_init[1:]
    if markers.traj_ids is not None:
        inner |= markers.traj_ids[1:] != markers.traj_ids[:-1]
    if markers.traj_step is not None:
        inner |= markers.traj_step[1:] != markers.traj_step[:-1] + 1
    if markers.mask is not None:
        inner |= markers.mask[1:] != markers.mask[:-1]
    return cut


def _cut_in_pieces(markers: Markers, size: int) -> NDArray[np.bool_]:
    """The same on the CPU, every marker read once: what is in between stays in the cache."""
    found = {name: getattr(markers, name) for name in FIELDS}
    have = {name: array_of(value) for name, value in found.items() if value is not None}
    flags = [have[name] for name in ("done", "terminated", "truncated") if name in have]
    steps, is_init = have.get("steps_to_next_obs"), have.get("is_init")
    alike = [have[name] for name in ("traj_ids", "mask") if name in have]
    cut, step = np.empty(size, bool), have.get("traj_step")
    differs, sums = np.empty(PIECE, bool), np.empty(PIECE, np.int64)
    for first in range(0, size, PIECE):
        here = slice(first, min(first + PIECE, size))
        ends = cut[here]
        ends[...] = flags[0][here] if flags else False
        for flag in flags[1:]:
            ends |= flag[here]
        if flags and steps is not None:
            ends &= steps[here] == 1
        stop = min(here.stop, size - 1)  # the last row has no row behind it
        inner, after = ends[: stop - first], slice(first + 1, stop + 1)
        other = differs[: stop - first]
        if is_init is not None:
            inner |= is_init[after]
        for marker in alike:
            inner |= np.not_equal(marker[after], marker[first:stop], out=other)
        if step is not None:
            expected = np.add(step[first:stop], 1, out=sums[: stop - first])
            inner |= np.not_equal(step[after], expected, out=other)
    return cut


def runs(cut: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """List the runs of real rows between cuts, with one device synchronisation.

    Args:
        cut: bool ``[N]``, True at the last row of every run.
        mask: bool ``[N]``, real rows; None where all are.

    Returns:
        First and last row of each run, int64 ``[S]`` each.

    Example:
        >>> runs(torch.tensor([False, True, True]), None)
        (tensor([0, 2]), tensor([1, 2]))
    """
    if mask is None:
        lasts = _nonzero(cut)
        starts = torch.zeros_like(lasts)
        torch.add(lasts[:-1], 1, out=starts[1:])
        return starts, lasts
    is_start = mask.clone()
    is_start[1:] &= cut[:-1]
    both = _nonzero(torch.cat([is_start, cut & mask]))  # as many starts as lasts
    starts, lasts = both.view(2, -1)
    return starts, lasts - len(cut)


def _nonzero(flag: Tensor) -> Tensor:
    if flag.device.type == "cpu":  # numpy finds sparse flags several times faster
        return torch.from_numpy(np.flatnonzero(array_of(flag)))
    return flag.nonzero()[:, 0]


def end_kinds(markers: Markers, lasts: Tensor) -> Tensor:
    """Say how each run ends: 2 terminated, 1 truncated, 0 cut.

    A done flag without its kind is completed: where only ``done`` is there it is a termination,
    and what ``done`` has beyond one kind is the other.

    Args:
        markers: the markers of a batch.
        lasts: last row of each run, int64 ``[S]``.

    Returns:
        uint8 ``[S]``.

    Example:
        >>> flag = torch.tensor([False, True])
        >>> end_kinds(Markers(torch.Size([2]), truncated=flag), torch.tensor([1]))
        tensor([1], dtype=torch.uint8)
    """
    here = markers.ends_at(lasts)
    ends = here.boundary()
    if ends is None:
        return torch.zeros_like(lasts, dtype=torch.uint8)
    if here.terminated is not None:
        terminated = here.terminated
    else:
        terminated = ends if here.truncated is None else ~here.truncated
    return ends.to(torch.uint8) + (ends & terminated).to(torch.uint8)
