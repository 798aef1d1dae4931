"""n-step rows on their way into a buffer, from any number of producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import EndKind, Segments, keys
from rl_layout.keys import NestedKey, leaves
from rl_transforms.multi_step import check_horizon, multi_step
from rl_transforms.transform import Transform


class MultiStepTransform(Transform):
    """Makes rows reach n steps ahead while they are stored.

    A row is passed on when the rows that it reaches have come, or its trajectory has ended; until
    then it is held back, with at most n - 1 rows of each open trajectory. Rows are put together by
    ``("collector", "traj_ids")`` and ``"traj_step"``, so any number of producers may write in any
    order. What is passed on keeps the order in which it came, is flat and has no padding. Rows
    that lack ids or steps are never held back: they reach as far as the call that brought them.

    Args:
        n_steps: how far to reach, at least 1.
        gamma: discount of a step, above 0 and at most 1.
        reward_keys: rewards to add up; ``["reward"]`` by default.

    Attributes:
        held: rows that are held back ``[K]``, None where none is.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> from rl_layout.testing import EndKind, trajectories
        >>> ahead, rows = MultiStepTransform(3, 0.9), trajectories([5], EndKind.CUT)
        >>> len(ahead.inv(rows)), len(ahead.held), len(ahead.flush()), ahead.held
        (3, 2, 2, None)
    """

    online = False
    side = "write"
    places = frozenset({"buffer"})

    def __init__(
        self, n_steps: int, gamma: float, *, reward_keys: Sequence[NestedKey] | None = None
    ) -> None:
        super().__init__([keys.REWARD] if reward_keys is None else reward_keys)
        check_horizon(gamma, n_steps)
        self.n_steps = n_steps
        self.gamma = gamma
        self.held: TensorDictBase | None = None

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Leave samples as they are: what is stored has its n steps."""
        return batch

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Take rows in and pass on those that are complete.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``, one step each.

        Returns:
            n-step rows ``[K]``, or None where none is complete yet. `multi_step` says what they
            hold.

        Raises:
            KeyError: a reward or every marker is missing.
            TypeError: a reward is not floating-point.
            ValueError: the rows cannot be extended (see `multi_step`), or have other keys than
                those held back.
        """
        ids = batch.get(keys.TRAJ_IDS, None)
        if ids is None or batch.get(keys.TRAJ_STEP, None) is None:
            return multi_step(batch, self.gamma, self.n_steps, self.in_keys)
        fresh = _real_rows(batch, ids)
        if not len(fresh):
            return None
        came = fresh if self.held is None else _joined(self.held, fresh)
        order = torch.argsort(came[keys.TRAJ_IDS], stable=True)
        rows = came[order]
        made = multi_step(rows, self.gamma, self.n_steps, self.in_keys)
        waits = _waiting(rows, self.n_steps)
        back = torch.argsort(order)  # to the order of arrival
        waiting = waits[back]
        self.held = came[waiting] if waiting.any() else None
        return None if waits.all() else made[back[~waiting]]

    def flush(self) -> TensorDictBase | None:
        """Pass on what is held back, as if every trajectory were cut here.

        Returns:
            n-step rows ``[K]`` that reach as far as there are rows; None where none is held.
        """
        if self.held is None:
            return None
        order = torch.argsort(self.held[keys.TRAJ_IDS], stable=True)
        rows, self.held = self.held[order], None
        return multi_step(rows, self.gamma, self.n_steps, self.in_keys)[torch.argsort(order)]

    def get_extra_state(self) -> dict[str, Any]:
        """Return what is held back, as `state_dict` wants it."""
        if self.held is None:
            return {"held": None, "count": 0}
        return {"held": self.held.to_dict(), "count": len(self.held)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Hold back what `get_extra_state` returned."""
        held = state["held"]
        self.held = None if held is None else TensorDict(held, [state["count"]])


def _real_rows(batch: TensorDictBase, ids: Tensor) -> TensorDictBase:
    flat = batch.reshape(-1)
    mask = batch.get(keys.MASK, None)
    real = ids.reshape(-1) != keys.PADDING_ID
    if mask is not None:
        real = real & mask.reshape(-1)
    rows: TensorDictBase = flat if bool(real.all()) else flat[real]
    # a name would not survive joining rows of other calls
    return rows.exclude(keys.MASK)


def _joined(held: TensorDictBase, fresh: TensorDictBase) -> TensorDictBase:
    there, here = ({key for key, _ in leaves(rows)} for rows in (held, fresh))
    if there != here:
        msg = f"the rows differ in keys from those held back: {sorted(there ^ here)}. Call flush."
        raise ValueError(msg)
    joined: TensorDictBase = torch.cat([held, fresh])
    return joined


def _waiting(rows: TensorDictBase, n_steps: int) -> Tensor:
    """Rows, sorted by id, that may still reach further ``[N]``: those near an open end."""
    segments = Segments.of(rows)
    ids = rows[keys.TRAJ_IDS]
    lasts = segments.lasts
    newest = torch.ones_like(lasts, dtype=torch.bool)
    newest[:-1] = ids[lasts[:-1]] != ids[lasts[1:]]
    is_open = newest & (segments.kinds == EndKind.CUT)
    left = segments.spread(lasts) - segments.rows + 1
    return segments.spread(is_open) & (left < n_steps)
