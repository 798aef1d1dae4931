"""Rows of interleaved trajectories, sorted by trajectory in the order of their arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import cut_between
from rl_tensordict.types import Array
from rl_transforms.multi_step.flat_leaves import OWN_ID, OWN_STEP, FlatRows

FLAGS: tuple[tuple[str, ...], ...] = ((keys.IS_INIT,), *keys.NEXT_DONE_KEYS)
NEIGHBOURS = slice(None, -1), slice(1, None)
"""Each row but the last, and the row after it."""
PRODUCER_SHIFT = 32  # of an id: the low bits count, the high ones tell the producer


@dataclass(frozen=True)
class TrajectoryOrder:
    """The position of each row in its trajectory, and the end of its segment."""

    # Whole runs of rows are sorted by trajectory, because neighbours mostly arrive together: the
    # work grows with the number of runs R, not of rows N. The arrays are numpy's, whose operations
    # on a few rows cost a fraction of torch's; the markers are copied to the host once.

    ids: Array  # int64 [N], the trajectory of each row
    run_ends: Array  # int64 [R], the last row of each run: consecutive rows of one segment
    sorted_rows: Array  # int64 [N], the rows sorted by trajectory, stable
    position: Array  # int64 [N], the inverse of sorted_rows
    remaining: Array  # int64 [N], rows of the segment from this one on, itself included
    is_open: Array  # bool [N], whether the segment is the newest of a trajectory that may continue

    @classmethod
    def of(cls, rows: Mapping[tuple[str, ...], Tensor]) -> TrajectoryOrder:
        """Sort rows by their ids and steps, leaves ``[N]``."""
        ids, steps, is_init, ends = _markers(rows)
        cut = np.zeros(len(ids) - 1, dtype=bool)  # after each row but the last
        cut_between(cut, NEIGHBOURS, alike=[ids], step=steps, is_init=is_init, ends=[ends])
        run_ends = np.append(np.flatnonzero(cut), len(ids) - 1)  # [R], in the order of arrival
        lengths = run_ends.copy()  # np.diff with a first run that begins at row 0
        lengths[0] += 1
        lengths[1:] -= run_ends[:-1]
        starts = run_ends - lengths + 1
        sort = np.argsort(ids[starts], kind="stable")
        final, is_open = _segments(ids, steps, is_init, ends, starts[sort], run_ends[sort])
        stops = lengths[sort].cumsum()  # where each run stops in the sorted order
        # what every row takes from its run, [3, R] in the order of arrival: the shift from row to
        # sorted place, the sorted place where the segment stops, and whether it may continue
        runs = np.empty((3, len(starts)), dtype=np.int64)
        runs[:, sort] = stops - lengths[sort] - starts[sort], stops[final], is_open
        shift, end, row_is_open = np.repeat(runs, lengths, axis=1)
        position = shift + np.arange(len(ids))
        sorted_rows = np.empty_like(position)
        sorted_rows[position] = np.arange(len(ids))
        return cls(ids, run_ends, sorted_rows, position, end - position, row_is_open.astype(bool))


def calls_pending(order: TrajectoryOrder, waited: Array, *, own: bool = False) -> Array:
    """Count for how many calls of its producer each row has been held back, int64 ``[N]``."""
    # held rows [H] come first, then those of this call, which have waited for none
    num_held = len(waited)
    calls = np.zeros(len(order.ids), dtype=np.int64)
    if own:  # rows that were given their ids here have one producer, which calls now
        calls[:num_held] = waited + 1
        return calls
    producers = order.ids >> PRODUCER_SHIFT
    calling = np.unique(producers[order.run_ends[order.run_ends >= num_held]])
    calls[:num_held] = waited + np.isin(producers[:num_held], calling)
    return calls


def cuts_before(rows: FlatRows) -> Array:
    """Rows of one call that a marker cuts from the row before them: bool ``[N]``."""
    wanted = (keys.TRAJ_IDS, keys.TRAJ_STEP, keys.MASK, *FLAGS)
    leaves = {key: rows.leaves[key] for key in wanted if key in rows.leaves}
    markers = {key: leaf.cpu().numpy().reshape(-1) for key, leaf in leaves.items()}
    cut = np.zeros(len(rows), dtype=bool)
    cut_between(
        cut[1:],
        NEIGHBOURS,
        alike=[markers[keys.TRAJ_IDS]] if keys.TRAJ_IDS in markers else (),
        step=markers.get(keys.TRAJ_STEP),
        is_init=markers.get(FLAGS[0]),
        ends=[markers[key] for key in FLAGS[1:] if key in markers],
    )
    if keys.MASK in markers:  # padding continues nothing, no other padding either
        cut[1:] |= ~(markers[keys.MASK][1:] & markers[keys.MASK][:-1])
    cut[0] = True
    return cut


def _markers(rows: Mapping[tuple[str, ...], Tensor]) -> tuple[Array, Array, Array, Array]:
    """Ids, steps, first steps and boundaries ``[N]``, copied to the host."""
    id_key, step_key = (OWN_ID, OWN_STEP) if OWN_ID in rows else (keys.TRAJ_IDS, keys.TRAJ_STEP)
    ids, count = rows[id_key], len(rows[id_key])
    # one transfer for the numbers and one for the flags, [2 N] and [F N]
    numbers = torch.cat([ids, rows[step_key]]).cpu().numpy()
    flags = [rows[key] for key in FLAGS if key in rows]
    if not flags:
        never = np.zeros(count, dtype=bool)
        return numbers[:count], numbers[count:], never, never
    stacked = torch.cat(flags).cpu().numpy().reshape(-1, count)
    first = FLAGS[0] in rows
    is_init: Array = stacked[0] if first else np.zeros(count, dtype=bool)
    ends: Array = np.logical_or.reduce(stacked[int(first) :])
    return numbers[:count], numbers[count:], is_init, ends


def _segments(
    ids: Array, steps: Array, is_init: Array, ends: Array, starts: Array, lasts: Array
) -> tuple[Array, Array]:
    """The last run of each run's segment, and whether that one is still open."""
    # Runs [R] are sorted by trajectory; those of one trajectory are in the order of arrival.
    cut, pairs = np.zeros(len(lasts) - 1, dtype=bool), (lasts[:-1], starts[1:])
    cut_between(cut, pairs, alike=[ids], step=steps, is_init=is_init, ends=[ends])
    ends_segment = np.flatnonzero(cut)  # runs that end a segment, the very last one left out
    next_end = np.searchsorted(ends_segment, np.arange(len(lasts)))
    final = np.append(ends_segment, len(lasts) - 1)[next_end]
    # an earlier segment of the same trajectory was cut: only the newest one can continue
    is_open = ~ends[lasts]
    is_open[:-1] &= ids[starts[1:]] != ids[starts[:-1]]
    return final, is_open[final]
