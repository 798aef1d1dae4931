"""Segments: what continues what, read from the markers alone."""

from itertools import pairwise
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys


class Marker(NamedTuple):
    """What one row says about its neighbours."""

    traj_id: int
    traj_step: int
    is_init: bool
    is_end: bool
    is_real: bool


def markers(rows: TensorDictBase) -> list[Marker]:
    """Read the markers of flat rows [N]; done on an n-step row ends only its last step."""
    done, is_init = rows[keys.NEXT_DONE], rows[keys.IS_INIT]
    is_end = done & (rows.get(keys.STEPS_TO_NEXT_OBS, done.long()) == 1)
    columns = [rows[keys.TRAJ_IDS], rows[keys.TRAJ_STEP], is_init[:, 0], is_end[:, 0]]
    columns.append(flag(rows, keys.MASK, True))
    return [Marker(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def flag(rows: TensorDictBase, key: tuple[str, ...], default: bool) -> Tensor:
    """Read a marker that may be absent, bool [N]."""
    return rows.get(key, torch.full(rows.shape, default))


def continues(before: Marker, after: Marker) -> bool:
    """Whether one row is the step after another: all markers must agree, and any one can cut."""
    same = after.traj_id == before.traj_id and after.traj_step == before.traj_step + 1
    return same and before.is_real and after.is_real and not (before.is_end or after.is_init)


def segment_ends(rows: TensorDictBase) -> list[bool]:
    """Mark the rows of a flat batch that the row after them does not continue."""
    return [not continues(before, after) for before, after in pairwise(markers(rows))] + [True]
