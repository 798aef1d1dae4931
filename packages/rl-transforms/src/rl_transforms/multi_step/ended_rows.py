"""Rows that end a trajectory and show as their last observation what the row after them shows."""

from __future__ import annotations

import warnings

import numpy as np

from rl_layout import keys
from rl_tensordict.types import Array
from rl_transforms.multi_step.flat_leaves import FlatRows
from rl_transforms.multi_step.observed_bytes import listed_bytes

_ENOUGH = 4  # fewer say little
_SURE = 64  # after so many the answer is known, and nothing is compared any more


class EndedRows:
    """Compares ended rows without ids with the rows after them; warns once where most repeat."""

    # A buffer compares the rows that it stores; n-step rows no longer show it.

    def __init__(self) -> None:
        self.compared = self.repeated = 0
        self._last: set[bytes] = set()  # next observations of rows that ended in the last call
        self._warned = False

    def see(self, rows: FlatRows, heads: Array) -> None:
        """Look at the rows of a call, int64 ``[S]`` of which have no predecessor in it."""
        former, self._last = self._last, set()
        if self._warned or self.compared >= _SURE:
            return
        if keys.TRAJ_IDS in rows.leaves or keys.TRAJ_STEP in rows.leaves:
            return
        padding = is_padding(rows)
        ended = np.flatnonzero(rows.flagged(keys.NEXT_DONE_KEYS) & ~padding)
        if not (former or len(ended)):
            return
        now, after = listed_bytes(rows, ended, 0), listed_bytes(rows, ended, 1)
        # one that did not move says nothing
        shown = {one for one, other in zip(after, now, strict=True) if one != other}
        starts = set(listed_bytes(rows, heads[~padding[heads]], 0))
        again = shown & starts  # the row after it is in this call
        self._last = shown - again
        self.compared += len(former) + len(again)
        self.repeated += len(former & starts) + len(again)
        if self.compared >= _ENOUGH and 2 * self.repeated > self.compared:
            self._warn()

    def _warn(self) -> None:
        self._warned = True
        warnings.warn(
            f"MultiStepTransform: {self.repeated} of {self.compared} rows that end a trajectory "
            "show under 'next' what the row after them shows. Either rows in which a vector only "
            "reset come as steps: keep them with ('collector', 'mask') False, or take "
            "autoreset_mode=AutoresetMode.SAME_STEP. Or what a reset returned is there: store the "
            "observation that step() returned. An environment that itself goes back to its first "
            "observation is right.",
            UserWarning,
            stacklevel=3,
        )


def is_padding(rows: FlatRows) -> Array:
    """Rows that their mask leaves out: bool ``[N]``."""
    if keys.MASK not in rows.leaves:
        return np.zeros(len(rows), dtype=bool)
    return ~rows.flagged([keys.MASK])
