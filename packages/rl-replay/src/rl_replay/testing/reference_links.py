"""Slow reference implementations over lists of rows, for tests of the fast ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from rl_layout import keys


@dataclass(frozen=True)
class Row:
    """The markers of one row."""

    traj_id: int | None  # None where rows have no ids
    step: int | None  # position in the trajectory, None where rows have no steps
    init: bool  # a first step
    boundary: bool  # a last step
    real: bool  # no padding

    @property
    def numbered(self) -> bool:
        """Whether it has an id and a step, which determine its predecessor."""
        return self.traj_id is not None and self.step is not None


def rows_of(batch: TensorDictBase) -> list[Row]:
    """The markers of rows `[N]`, one by one."""
    return [_row(one) for one in batch.unbind(0)]


def continues(earlier: Row, later: Row) -> bool:
    """Whether no marker cuts between two rows, of which the second may follow the first."""
    return (
        earlier.real
        and later.real
        and earlier.traj_id == later.traj_id
        and (earlier.step is None or later.step == earlier.step + 1)
        and not later.init
        and not earlier.boundary
    )


def linked(live: Sequence[tuple[int, Row]]) -> dict[int, int]:
    """The predecessor of each live row, by ids and steps alone."""
    # live: row ids and rows, the oldest first, no step twice
    return {
        later: earlier
        for place, (later, row) in enumerate(live)
        for earlier, other in live[:place]
        if row.numbered and continues(other, row)
    }


def _row(one: TensorDictBase) -> Row:
    def read(key: Any, absent: Any) -> Any:
        leaf = one.get(key, None)
        return absent if leaf is None else leaf.any().item() if absent is False else leaf.item()

    ended = any(read(key, False) for key in keys.NEXT_DONE_KEYS)
    mask = one.get(keys.MASK, None)
    return Row(
        traj_id=read(keys.TRAJ_IDS, None),
        step=read(keys.TRAJ_STEP, None),
        init=read(keys.IS_INIT, False),
        boundary=ended and read(keys.STEPS_TO_NEXT_OBS, 1) == 1,
        real=mask is None or bool(mask),
    )
