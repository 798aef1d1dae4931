"""From markers to the runs of rows that belong together: the one place that applies the rule.

Row j continues row i if and only if both are real, their ids are equal, j's step is one more,
j is not ``is_init`` and i is no boundary. Any marker that cuts, cuts. Observations that contradict
it, where they must be looked at, come as one more flag: see `rl_layout.segments.contradiction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_layout.compiled import LEAST_ROWS, run_compiled
from rl_layout.segments.flat_views import array_of
from rl_layout.segments.markers import FIELDS, Markers

LOOPS = "rl_layout.segments.numba_cuts"
PIECE = 32_768
ENDS = ("done", "terminated", "truncated")


def cut_rows(markers: Markers, contradicted: Tensor | None = None) -> Tensor:
    """Find the rows whose successor does not continue them."""
    if _any_of(markers).device.type == "cpu" and not torch.compiler.is_dynamo_compiling():
        found = _cut_on_cpu(arrays_of(markers), markers.batch_shape, contradicted)
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
    if _any_of(markers).device.type == "cpu":
        traced = torch.compiler.is_dynamo_compiling()
        return (_find_outside if traced else _find_on_cpu)(markers, contradicted)
    starts, lasts = runs(cut_rows(markers, contradicted), markers.mask)
    return starts, lasts, lasts - starts + 1, end_kinds(markers, lasts)


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


def _inner_cuts(markers: Markers) -> Tensor:
    """The cuts that markers make, bool ``[N]``; ends of rows of the batch are not among them."""
    boundary = markers.boundary()
    cut = torch.zeros_like(_any_of(markers), dtype=torch.bool) if boundary is None else boundary
    alike = [marker for marker in (markers.traj_ids, markers.mask) if marker is not None]
    cut_between(
        cut[:-1],  # place i cuts between rows i and i + 1; a view, so `cut` gets every flag
        (slice(None, -1), slice(1, None)),
        alike=alike,
        step=markers.traj_step,
        is_init=markers.is_init,
    )
    return cut


def cut_between(
    cut: Any,
    pairs: tuple[Any, Any],
    *,
    alike: Sequence[Any] = (),
    step: Any = None,
    is_init: Any = None,
    ends: Sequence[Any] = (),
) -> None:
    """Adds to `cut` which pairs of rows a marker cuts: the rule, for numpy and for torch.

    `cut` is bool ``[pairs]``; `pairs` select the earlier and the later rows from the columns,
    ``[N]`` each: those that must be equal, steps, first steps, and last steps.
    """
    earlier, later = pairs
    for column in alike:
        cut |= column[later] != column[earlier]
    if step is not None:
        cut |= step[later] != step[earlier] + 1
    if is_init is not None:
        cut |= is_init[later]
    for flag in ends:
        cut |= flag[earlier]


def arrays_of(markers: Markers) -> dict[str, NDArray[Any]]:
    """Look at the markers of a batch on the CPU as numpy arrays ``[N]``, by their names."""
    found = ((name, getattr(markers, name)) for name in FIELDS)
    return {name: array_of(value) for name, value in found if value is not None}


def _cut_on_cpu(
    have: dict[str, NDArray[Any]], shape: torch.Size, contradicted: Tensor | None
) -> NDArray[np.bool_]:
    """The same on the CPU, every marker read once."""
    size = shape.numel()
    cut = np.empty(size, bool)
    columns = *map(have.get, FIELDS), cut
    if size < LEAST_ROWS or not run_compiled(LOOPS, "mark_cuts", *columns):
        cut_by_numpy(have, cut)
    if contradicted is not None:
        cut |= array_of(contradicted)
    cut.reshape(-1, shape[-1])[:, -1] = True
    return cut


def cut_by_numpy(have: dict[str, NDArray[Any]], cut: NDArray[np.bool_]) -> None:
    """Write the cuts, by numpy: what is between two operations stays in the cache."""
    size = len(cut)
    flags = [have[name] for name in ENDS if name in have]
    steps, is_init = have.get("steps_to_next_obs"), have.get("is_init")
    alike = [have[name] for name in ("traj_ids", "mask") if name in have]
    step = have.get("traj_step")
    for first in range(0, size, PIECE):
        here = slice(first, min(first + PIECE, size))
        own = cut[here]
        own[...] = flags[0][here] if flags else False
        for flag in flags[1:]:
            own |= flag[here]
        if flags and steps is not None:
            own &= steps[here] == 1
        stop = min(here.stop, size - 1)  # the last row has no row after it
        pairs = slice(first, stop), slice(first + 1, stop + 1)
        cut_between(own[: stop - first], pairs, alike=alike, step=step, is_init=is_init)


def _find_on_cpu(
    markers: Markers, contradicted: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The runs without torch: on a few thousand rows calls of torch take most of the time."""
    have = arrays_of(markers)
    cut, mask = _cut_on_cpu(have, markers.batch_shape, contradicted), have.get("mask")
    if mask is None:
        (lasts,) = cut.nonzero()
        lengths = lasts.copy()
        # the first run begins at row 0, each other one after the last row of the one before
        lengths[:1] += 1
        np.subtract(lasts[1:], lasts[:-1], out=lengths[1:])
        starts = lasts - lengths
        starts += 1
    else:
        # a real row starts a run where the row before it is cut off, row 0 wherever it is real
        is_start = mask.copy()
        is_start[1:] &= cut[:-1]
        (starts,), (lasts,) = is_start.nonzero(), (cut & mask).nonzero()
        lengths = lasts - starts
        lengths += 1
    there = {name: have[name][lasts] for name in (*ENDS, "steps_to_next_obs") if name in have}
    ends, terminated = _ends_of(there)
    if ends is None:
        kinds = np.zeros(len(lasts), np.uint8)
    else:
        # terminated is a part of ends: 0 + 0 cut, 1 + 0 truncated, 1 + 1 terminated
        kinds = np.add(ends, terminated, dtype=np.uint8)
    make = torch.from_numpy
    return make(starts), make(lasts), make(lengths), make(kinds)


_find_outside = torch.compiler.disable(_find_on_cpu)  # compilers do not follow numpy's arrays


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
    ends, terminated = _ends_of({k: v[lasts] for k, v in there.items() if v is not None})
    if ends is None:
        return torch.zeros_like(lasts, dtype=torch.uint8)
    made: Tensor = ends.to(torch.uint8) + terminated.to(torch.uint8)
    return made


def _ends_of(there: Mapping[str, Any]) -> tuple[Any, Any]:
    """Which rows are boundaries, and which of those terminations, of arrays of either kind."""
    flags = [there[name] for name in ENDS if name in there]
    if not flags:
        return None, None
    ends = reduce(or_, flags)
    if "steps_to_next_obs" in there:
        ends = ends & (there["steps_to_next_obs"] == 1)
    if "terminated" in there:
        return ends, ends & there["terminated"]
    return ends, ends & ~there["truncated"] if "truncated" in there else ends
