"""From markers to the runs of rows that belong together: the one place that applies rule 2.

Row j continues row i if and only if both are real, their ids are equal, j's step is one more,
j is not ``is_init`` and i is no boundary. Any marker that cuts, cuts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_layout.markers import FIELDS, Markers

PIECE = 16_384


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
    cut = _boundary(markers)
    inner, scratch = cut[:-1], torch.empty_like(cut[:-1])  # one piece of new memory for all
    if markers.is_init is not None:
        inner |= markers.is_init[1:]
    if markers.traj_ids is not None:
        inner |= _differs(markers.traj_ids, 0, scratch)
    if markers.traj_step is not None:
        inner |= _differs(markers.traj_step, 1, scratch)
    if markers.mask is not None:
        inner |= torch.ne(markers.mask[1:], markers.mask[:-1], out=scratch)
    cut.view(-1, markers.batch_shape[-1])[:, -1] = True
    return cut


def _boundary(markers: Markers) -> Tensor:
    """The boundary flags, or none, in memory of their own: bool ``[N]``."""
    boundary = markers.boundary()
    if boundary is None:
        others = (markers.is_init, markers.traj_ids, markers.traj_step)
        some = next((marker for marker in others if marker is not None), None)
        if some is None:
            names = [str(key) for key, _, _ in FIELDS.values()]
            msg = f"no marker tells the trajectories apart: expected one of {', '.join(names[:6])}."
            raise KeyError(msg)
        return torch.zeros_like(some, dtype=torch.bool)
    return boundary


def _differs(values: Tensor, step: int, out: Tensor) -> Tensor:
    """Whether a value is not ``step`` more than the one before it, bool ``[N - 1]``."""
    if values.device.type != "cpu":
        return torch.ne(values[1:], values[:-1] + step, out=out)
    array, found = (
        np.from_dlpack(values),
        np.from_dlpack(out),
    )  # numpy compares integers several times faster
    for first in range(0, len(found), PIECE):  # sums that stay in the cache cost no page faults
        stop = min(first + PIECE, len(found))
        np.not_equal(array[first + 1 : stop + 1], array[first:stop] + step, out=found[first:stop])
    return out


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
        return torch.nn.functional.pad(lasts[:-1] + 1, (1, 0)), lasts
    is_start = mask.clone()
    is_start[1:] &= cut[:-1]
    both = _nonzero(torch.cat([is_start, cut & mask]))  # as many starts as lasts
    starts, lasts = both.view(2, -1)
    return starts, lasts - len(cut)


def _nonzero(flag: Tensor) -> Tensor:
    if flag.device.type == "cpu":  # numpy finds sparse flags several times faster
        return torch.from_numpy(np.flatnonzero(np.from_dlpack(flag)))
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
