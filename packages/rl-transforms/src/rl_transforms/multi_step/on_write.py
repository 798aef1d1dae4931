"""n-step rows on their way into a buffer, from any number of producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, names_of
from rl_transforms.arguments import check_whole
from rl_transforms.multi_step.checks import (
    check_group_flags,
    check_horizon,
    flat_reward,
    refuse_far_rows,
)
from rl_transforms.multi_step.flat_leaves import OWN_ID, FlatRows
from rl_transforms.multi_step.horizon import Horizon
from rl_transforms.multi_step.on_sample import multi_step
from rl_transforms.multi_step.own_ids import numbered, observed_pairs
from rl_transforms.multi_step.pending_steps import NOBODY, HeldColumns
from rl_transforms.multi_step.trajectory_order import Array, Arrivals, calls_waited
from rl_transforms.short_rows import warn_of_ended_calls
from rl_transforms.transform import Transform


class HeldRows(NamedTuple):
    """Rows that are held back, and for how many calls of its producer each of them has been."""

    rows: FlatRows | None
    waited: Array


_NOTHING = HeldRows(None, np.zeros(0, dtype=np.int64))


class MultiStepTransform(Transform):
    """Makes rows reach n steps ahead while they are stored, combined by ids and steps.

    A row is passed on when the rows that it reaches have come, or its trajectory has ended; until
    then it is held back, with at most n - 1 rows of each open trajectory. Rows are combined by
    ``("collector", "traj_ids")`` and ``"traj_step"``, so any number of producers may write in any
    order. What is passed on keeps the order in which it came, is flat and has no padding.

    Rows without ids or steps are combined by their observations: neighbours of one call unless
    these contradict it, and rows of two calls where ``("next", observation)`` of the earlier one
    and the observation of the later one are equal bit for bit, as in a loop that adds one row, or
    one row of every environment, a call. Where two rows that wait say the same comes next, none is
    continued. Without a next observation they reach only as far as the call that brought them. A
    warning says once where rows without ids reach less far than asked for.

    A trajectory that has not gone on in `patience` calls of its producer is taken for cut.
    Otherwise the rows of one that was given up, as by a reset ahead of its end, would wait for
    ever.

    With `columns` rows are passed on in the shape ``[*B, T]`` that a storage with ``ndim=2`` wants.
    Environments end at different times, so to keep it rectangular the last n - 1 steps of every
    environment are held back, ended or not. Producers are told apart by the high 31 bits of their
    ids; row b of a call continues row b of the same producer's call before, where ids and steps
    say so.

    Args:
        n_steps: how far to reach, at least 1.
        gamma: discount of a step, above 0 and at most 1.
        reward_keys: rewards to add up; ``["reward"]`` by default.
        columns: pass rows on as ``[*B, T]``.
        patience: calls of its producer that a trajectory may miss, at least 1.

    Attributes:
        held: rows that are held back, ``[K]`` or ``[*B, T]``; None where none is.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> from rl_layout.testing import EndKind, environments, trajectories
        >>> ahead, rows = MultiStepTransform(3, 0.9), trajectories([5], EndKind.CUT)
        >>> len(ahead.inv(rows)), len(ahead.held), len(ahead.flush()), ahead.held
        (3, 2, 2, None)
        >>> batch = environments(4, 7, [3], [EndKind.TERMINATED])
        >>> MultiStepTransform(3, 0.9, columns=True).inv(batch).batch_size
        torch.Size([4, 5])
    """

    online = False
    side = "write"
    places = frozenset({"buffer"})

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Sequence[NestedKey] | None = None,
        columns: bool = False,
        patience: int = 16,
    ) -> None:
        super().__init__([keys.REWARD] if reward_keys is None else reward_keys)
        check_horizon(gamma, n_steps)
        check_whole("patience", patience, 1)
        self.patience = patience
        self.n_steps = n_steps
        self.gamma = gamma
        self._horizon = Horizon(n_steps, gamma, {next_key(key) for key in self.in_keys})
        self._columns = HeldColumns() if columns else None
        self._pending = _NOTHING  # one attribute, so that no interrupt leaves half of it
        self._warned = False  # of rows without ids that end with their call

    @property
    def held(self) -> TensorDictBase | None:
        """Rows that are held back, ``[K]`` or ``[*B, T]``; None where none is."""
        held = self._pending.rows if self._columns is None else self._columns.all()
        return None if held is None else held.batch()

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Leave samples as they are: what is stored has its n steps."""
        return batch

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Take rows in and pass on those that are complete.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``, one step each.

        Returns:
            n-step rows ``[K]``, or ``[*B, T]`` with `columns`; None where none is complete yet.
            `multi_step` says what they hold.

        Raises:
            KeyError: a reward or every marker is missing.
            TypeError: a reward is not floating-point, or a leaf is no tensor.
            ValueError: the rows cannot be extended (see `multi_step`), or they have other keys,
                shapes or dtypes than those held back; or with `columns`, there is padding or
                another number of environments.
        """
        if self._columns is not None:
            time = _time(batch)
            rows = batch if time is None else batch.transpose(time, -1)
            made = self._by_column(rows, self._columns)
            return made if made is None or time is None else made.transpose(time, -1)
        fresh = FlatRows.of(batch)
        held = self._pending.rows
        if held is None:
            self._check(batch, fresh)
        has_ids = _has_ids(fresh)
        if not has_ids:
            if not observed_pairs(fresh):
                return self._of_call(batch)
            fresh = numbered(batch, fresh, _own(held), columns=False)
        fresh = fresh.real().flat()
        if not len(fresh):
            return None
        made = self._passed(fresh if held is None else held.followed_by(fresh))
        return made if has_ids else self._warned_of(made)

    def _warned_of(self, made: TensorDictBase | None) -> TensorDictBase | None:
        """The same rows, once their warning is said if they reach less far than asked for."""
        if made is not None and not self._warned:
            self._warned = warn_of_ended_calls(made, self.n_steps)
        return made

    def _of_call(self, batch: TensorDictBase) -> TensorDictBase:
        """Rows that reach as far as their call does: nothing tells which row continues which."""
        made = multi_step(batch, self.gamma, self.n_steps, self.in_keys)
        self._warned_of(made)
        return made

    def flush(self) -> TensorDictBase | None:
        """Pass on what is held back, as if every trajectory were cut here.

        Returns:
            n-step rows ``[K]``, or ``[*B, T]`` with `columns`, that reach as far as there are
            rows; None where none is held.
        """
        if self._columns is not None:
            blocks, self._columns.blocks = list(self._columns.blocks.values()), {}
            made = [far for rows in blocks if (far := self._far(rows, 0)) is not None]
            return torch.cat(made, -1) if made else None
        held = self._pending.rows
        if held is None:
            return None
        stand = Arrivals.of(held.leaves)
        rest = self._horizon.of(held, stand, np.arange(len(held))).batch()
        self._pending = _NOTHING
        return rest

    def write_state(self) -> Any:
        """Return the rows that are held back."""
        return self._pending if self._columns is None else dict(self._columns.blocks)

    def restore_write_state(self, state: Any) -> None:
        """Hold back what `write_state` returned.

        Args:
            state: what it returned.
        """
        if self._columns is None:
            self._pending = state
        else:
            self._columns.blocks = state

    def _passed(self, rows: FlatRows) -> TensorDictBase | None:
        """The n-step rows of those that are complete, None without any; the others are held."""
        stand = Arrivals.of(rows.leaves)
        check_group_flags(rows.leaves, stand.left == 1)
        waited = calls_waited(stand, self._pending.waited)
        waiting = np.flatnonzero(stand.is_open & (stand.left < self.n_steps))
        newest = stand.order[stand.place[waiting] + stand.left[waiting] - 1]
        waiting = waiting[waited[newest] < self.patience]
        is_kept = np.ones(len(rows), dtype=bool)
        is_kept[waiting] = False
        kept = np.flatnonzero(is_kept)
        made = self._horizon.of(rows, stand, kept).batch() if len(kept) else None
        held = rows.take(rows.index(waiting)) if len(waiting) else None
        self._pending = HeldRows(held, waited[waiting])
        return made

    def _by_column(self, batch: TensorDictBase, columns: HeldColumns) -> TensorDictBase | None:
        """The n-step rows of all but the last steps of every environment, which are held."""
        fresh = FlatRows.of(batch)
        if not columns.blocks:
            self._check(batch, fresh)
        has_ids = _has_ids(fresh)
        if not has_ids:
            if not observed_pairs(fresh):
                return self._of_call(batch)
            columns.require_alike(fresh)
            fresh = numbered(batch, fresh, columns.blocks.get(NOBODY), columns=True)
        who, rows = columns.joined(fresh)
        made = self._far(rows, self.n_steps - 1)
        columns.keep(who, rows, self.n_steps - 1)
        if made is not None and (names := names_of(batch)):
            made.names = names
        return made if has_ids else self._warned_of(made)

    def _far(self, rows: FlatRows, waiting: int) -> TensorDictBase | None:
        """The n-step rows of ``[*B, T]`` but for the last steps, None without any."""
        width = rows.shape[-1]
        if width <= waiting:
            return None
        stand = Arrivals.of(rows.leaves)
        check_group_flags(rows.leaves, stand.left == 1)
        kept = np.arange(len(rows)).reshape(-1, width)[:, : width - waiting].reshape(-1)
        return self._horizon.of(rows, stand, kept, width - waiting).batch()

    def _check(self, batch: TensorDictBase, fresh: FlatRows) -> None:
        far = any(key[:2] == keys.DELTA for key in fresh.leaves)
        rebuilt = 'Compose(MultiStepTransform(...), NextObservationDelta(side="rebuild"))'
        refuse_far_rows(keys.STEPS_TO_NEXT_OBS in fresh.leaves, far, rebuilt)
        fresh.check_markers()
        for key in self.in_keys:
            found = fresh.leaves.get(next_key(key))
            if found is None or not found.is_floating_point():
                flat_reward(batch, key)  # which says what is wrong

    def get_extra_state(self) -> dict[str, Any]:
        """Return what is held back, as `state_dict` wants it."""
        if self._columns is not None:
            return {"columns": self._columns.state()}
        held = self._pending.rows
        if held is None:
            return {"held": None, "waited": []}
        return {"held": held.batch(own=True).to_dict(), "waited": self._pending.waited.tolist()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Hold back what `get_extra_state` returned."""
        if ("columns" in state) != (self._columns is not None):
            msg = "the state holds rows back as columns, or flat, and this transform does not: "
            raise ValueError(msg + "make it with the same columns=.")
        if self._columns is not None:
            self._columns.load(state["columns"])
            return
        waited, held = np.array(state["waited"], dtype=np.int64), state["held"]
        rows = None if held is None else FlatRows.of(TensorDict(held, [len(waited)]))
        self._pending = HeldRows(rows, waited)


def _own(held: FlatRows | None) -> FlatRows | None:
    """Held rows that were numbered here; those with ids of their own are continued by no others."""
    return held if held is not None and OWN_ID in held.leaves else None


def _has_ids(rows: FlatRows) -> bool:
    return keys.TRAJ_IDS in rows.leaves and keys.TRAJ_STEP in rows.leaves


def _time(batch: TensorDictBase) -> int | None:
    """Where time lies, if not last."""
    names = names_of(batch) or []
    time: int = names.index(keys.TIME) if keys.TIME in names else batch.ndim - 1
    return None if time == batch.ndim - 1 else time
