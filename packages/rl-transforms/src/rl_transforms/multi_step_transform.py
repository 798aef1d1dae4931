"""n-step rows on their way into a buffer, from any number of producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import EndKind, Segments, keys
from rl_layout.keys import NestedKey, leaves
from rl_layout.markers import FIELDS
from rl_transforms.multi_step import (
    check_groups,
    check_horizon,
    check_rows,
    discounted_sums,
    last_rows,
    multi_step,
    reaching,
    row_ends,
)
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
        made, waiting = self._extended(came)
        self.held = came[waiting.nonzero()[:, 0]] if waiting.any() else None
        return made

    def flush(self) -> TensorDictBase | None:
        """Pass on what is held back, as if every trajectory were cut here.

        Returns:
            n-step rows ``[K]`` that reach as far as there are rows; None where none is held.
        """
        if self.held is None:
            return None
        rows, self.held = self.held, None
        return self._extended(rows, wait=False)[0]

    def _extended(
        self, rows: TensorDictBase, wait: bool = True
    ) -> tuple[TensorDictBase | None, Tensor]:
        """The n-step rows of those that are complete, None without any; and which are not."""
        rewards = check_rows(rows, self.in_keys)
        # only markers and rewards are sorted; the other leaves are moved once, at the end
        order = torch.argsort(rows[keys.TRAJ_IDS], stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        segments = Segments.of(_markers(rows)[order])
        check_groups(rows, row_ends(segments)[place])
        last = last_rows(segments)
        left = last - torch.arange(len(last), device=last.device) + 1
        short = is_open(segments, rows[keys.TRAJ_IDS][order]) & (left < self.n_steps)
        waiting = short[place] if wait else torch.zeros_like(short)
        kept = (~waiting).nonzero()[:, 0]
        if not len(kept):
            return None, waiting
        sums = {
            key: discounted_sums(flat[order], last, self.gamma, self.n_steps)[place[kept]]
            for key, flat in rewards.items()
        }
        steps = left.clamp(max=self.n_steps)[place[kept]]
        return reaching(rows, order[place[kept] + steps - 1], steps, sums, kept), waiting

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


def _markers(rows: TensorDictBase) -> TensorDictBase:
    return rows.select(*(key for key, _, _ in FIELDS.values()), strict=False)


def is_open(segments: Segments, ids: Tensor) -> Tensor:
    """Say which rows belong to a trajectory that may go on.

    Args:
        segments: of N rows that are sorted by id.
        ids: int64 ``[N]``.

    Returns:
        bool ``[N]``: rows of the last segment of an id, where that does not end with done.

    Example:
        >>> segments = Segments.from_ids(torch.tensor([4, 4, 4]), torch.tensor([0, 2, 3]))
        >>> is_open(segments, torch.tensor([4, 4, 4]))
        tensor([False,  True,  True])
    """
    lasts = segments.lasts
    newest = torch.ones_like(lasts, dtype=torch.bool)
    newest[:-1] = ids[lasts[:-1]] != ids[lasts[1:]]
    return segments.spread(newest & (segments.kinds == EndKind.CUT))
