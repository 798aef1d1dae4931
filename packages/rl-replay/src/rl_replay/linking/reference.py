"""Slow, plain twins: lists of rows and one Python loop each, to check the fast ones against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from rl_layout import keys


@dataclass(frozen=True)
class Row:
    """What the contract's markers say about one row.

    Attributes:
        traj_id: Its trajectory, None where rows have no ids.
        step: Its position there, None where rows have no steps.
        init: A first step.
        boundary: A last step.
        real: No padding.
    """

    traj_id: int | None
    step: int | None
    init: bool
    boundary: bool
    real: bool

    @property
    def numbered(self) -> bool:
        """Whether it names the row that it continues."""
        return self.traj_id is not None and self.step is not None


def rows_of(batch: TensorDictBase) -> list[Row]:
    """The markers of rows `[N]`, one by one.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> [row.boundary for row in rows_of(trajectories([2, 1]))]
        [False, True, True]
    """
    return [_row(one) for one in batch.unbind(0)]


def continues(earlier: Row, later: Row) -> bool:
    """Whether no marker cuts between two rows, of which the second may follow the first.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> first, second, third = rows_of(trajectories([2, 1]))
        >>> continues(first, second), continues(second, third)
        (True, False)
    """
    return (
        earlier.real
        and later.real
        and earlier.traj_id == later.traj_id
        and (earlier.step is None or later.step == earlier.step + 1)
        and not later.init
        and not earlier.boundary
    )


def linked(live: Sequence[tuple[int, Row]]) -> dict[int, int]:
    """For each live row that continues another one, that one: by ids and steps alone.

    Args:
        live: Number and row, the oldest first, no step twice.

    Returns:
        The number of the row before, by the number of the row.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> linked(list(enumerate(rows_of(trajectories([3, 2])))))
        {1: 0, 2: 1, 4: 3}
    """
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

    ended = any(
        read(key, False) for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)
    )
    mask = one.get(keys.MASK, None)
    return Row(
        traj_id=read(keys.TRAJ_IDS, None),
        step=read(keys.TRAJ_STEP, None),
        init=read(keys.IS_INIT, False),
        boundary=ended and read(keys.STEPS_TO_NEXT_OBS, 1) == 1,
        real=mask is None or bool(mask),
    )
