"""n-step rows made when a buffer stores them, for any number of producers."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from rl_layout.keys import next_key
from rl_tensordict import names_of
from rl_tensordict.arguments import check_whole
from rl_tensordict.types import Array
from rl_transforms.multi_step.checks import (
    check_groups,
    check_horizon,
    check_single_steps,
    flat_reward,
    warn_of_ended_calls,
)
from rl_transforms.multi_step.ended_rows import EndedRows
from rl_transforms.multi_step.flat_leaves import OWN_ID, FlatRows
from rl_transforms.multi_step.horizon import FEW, Horizon
from rl_transforms.multi_step.next_row import next_row
from rl_transforms.multi_step.observed_bytes import observed_pairs
from rl_transforms.multi_step.on_sample import multi_step
from rl_transforms.multi_step.own_ids import GivenIds, TrajectoryNumbers, assign_ids
from rl_transforms.multi_step.pending_steps import NO_PRODUCER, PendingSteps
from rl_transforms.multi_step.trajectory_order import TrajectoryOrder, calls_pending
from rl_transforms.transform import Keys, Transform


class PendingRows(NamedTuple):
    """Rows that are held back, and for how many calls of its producer each of them has been."""

    blocks: tuple[FlatRows, ...]  # any rows, and single ones that came since and continue them
    waited: Array

    @property
    def rows(self) -> FlatRows | None:
        """All of them; None if there are none."""
        return reduce(FlatRows.followed_by, self.blocks) if self.blocks else None


_NONE_PENDING = PendingRows((), np.zeros(0, dtype=np.int64))


class MultiStepTransform(Transform):
    """Makes rows reach n steps ahead while they are stored, combined by ids and steps.

    A row is held back until its n rows have arrived or its trajectory has ended, at most n - 1 rows
    of each open trajectory. Rows are combined by ``("collector", "traj_ids")`` and ``"traj_step"``,
    so any number of producers may write in any order. The result is flat, in the order of arrival,
    without padding.

    Rows without ids or steps are combined by their observations: neighbours of one call unless
    these contradict it, and rows of two calls where ``("next", observation)`` of the earlier one
    and the observation of the later one are equal bit for bit, as in a loop that adds one row, or
    one row of every environment, a call. Held rows with equal next observations are ambiguous and
    are not continued. Rows without a next observation span their own call only. A warning is given
    once if rows without ids span fewer than n steps. Rows with neither ids nor steps are passed on
    with both, because nothing else tells which n-step row follows another one.

    A trajectory without a new row in `patience` calls of its producer counts as cut. Otherwise the
    rows of an abandoned one, for example after an early reset, would be held back forever.

    With `columns` rows are passed on in the shape ``[*B, T]`` that a storage with ``ndim=2`` wants.
    The last n - 1 steps of every environment are held back, ended or not, to keep the shape
    rectangular. The high 31 bits of the ids identify the producer; row b of a call continues row b
    of the same producer's previous call if ids and steps agree.

    Args:
        n_steps: n, at least 1.
        gamma: discount of a step, above 0 and at most 1.
        reward_keys: rewards to sum; ``["reward"]`` by default.
        columns: pass rows on as ``[*B, T]``.
        patience: calls of its producer that a trajectory may miss, at least 1.
        producer: high bits of the ids that rows without any are given; drawn where None.

    Attributes:
        held: rows that are held back, ``[K]`` or ``[*B, T]``; None if none is.

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
        reward_keys: Keys = None,
        columns: bool = False,
        patience: int = 16,
        producer: int | None = None,
    ) -> None:
        super().__init__([keys.REWARD] if reward_keys is None else reward_keys)
        check_horizon(gamma, n_steps)
        check_whole("patience", patience, 1)
        self.patience = patience
        self.n_steps = n_steps
        self.gamma = gamma
        self._horizon = Horizon(n_steps, gamma, {next_key(key) for key in self.in_keys})
        self._columns = PendingSteps() if columns else None
        self._pending = _NONE_PENDING  # one attribute, so that no interrupt leaves half of it
        self._given = GivenIds(TrajectoryNumbers(producer), EndedRows())
        self._warned = False  # of rows without ids that end with their call

    @property
    def held(self) -> TensorDictBase | None:
        """Rows that are held back, ``[K]`` or ``[*B, T]``; None if none is."""
        held = self._pending.rows if self._columns is None else self._columns.all()
        return None if held is None else held.batch()

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Return samples unchanged: stored rows are n-step rows."""
        return batch

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Accept rows and return the n-step rows that are complete.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``, one step each.

        Returns:
            n-step rows ``[K]``, or ``[*B, T]`` with `columns`; None if none is complete yet.
            `multi_step` says what they hold.

        Raises:
            KeyError: a reward or every marker is missing.
            TypeError: a reward is not floating-point, or a leaf is no tensor.
            ValueError: the rows cannot be extended (see `multi_step`), or they have other keys,
                shapes or dtypes than those held back; or with `columns`, there is padding or
                another number of environments.
        """
        if self._columns is not None:
            time = _time_dim(batch)
            rows = batch if time is None else batch.transpose(time, -1)
            extended = self._by_column(rows, self._columns)
            return extended if extended is None or time is None else extended.transpose(time, -1)
        fresh = FlatRows.of(batch)
        if self.n_steps <= FEW and (row := next_row(self._pending.blocks, fresh)) is not None:
            return self._append(row)
        held = self._pending.rows
        if held is None:
            self._check(batch, fresh)
        has_ids = _has_ids(fresh)
        if not has_ids:
            if not observed_pairs(fresh):
                return self._within_call(batch)
            fresh = assign_ids(batch, fresh, _numbered_here(held), self._given, columns=False)
        fresh = fresh.real().flat()
        if not len(fresh):
            return None
        extended = self._complete(fresh if held is None else held.followed_by(fresh))
        return extended if has_ids else self._with_warning(extended)

    def _append(self, row: FlatRows) -> TensorDictBase | None:
        """Hold back the next row of a trajectory; the n-step row that it completes, if any."""
        if OWN_ID in row.leaves:
            self._given.ended.see(row, np.zeros(1, dtype=np.int64))
        rows, waited = (*self._pending.blocks, row), np.append(self._pending.waited + 1, 0)
        if len(rows) < self.n_steps:
            self._pending = PendingRows(rows, waited)
            return None
        extended = self._horizon.n_step_row(rows).numbered().batch()
        self._pending = PendingRows(rows[1:], waited[1:])
        return extended

    def _with_warning(self, extended: TensorDictBase | None) -> TensorDictBase | None:
        """Warn once if rows without ids span fewer than n steps; return the rows."""
        if extended is not None and not self._warned:
            self._warned = warn_of_ended_calls(extended, self.n_steps)
        return extended

    def _within_call(self, batch: TensorDictBase) -> TensorDictBase:
        """n-step rows that span their own call only, as rows without ids and observations do."""
        extended = multi_step(batch, self.gamma, self.n_steps, self.in_keys)
        self._with_warning(extended)
        return extended

    def flush(self) -> TensorDictBase | None:
        """Return the rows that are held back, as if every trajectory were cut here.

        Returns:
            n-step rows ``[K]``, or ``[*B, T]`` with `columns`, that reach as far as there are
            rows; None if none is held.
        """
        if self._columns is not None:
            blocks = self._columns.blocks.values()
            made = [block for rows in blocks if (block := self._all_but_last(rows, 0)) is not None]
            self._columns.blocks = {}
            return torch.cat(made, -1) if made else None
        held = self._pending.rows
        if held is None:
            return None
        order = TrajectoryOrder.of(held.leaves)
        rest = self._made(held, order, np.arange(len(held)))
        self._pending = _NONE_PENDING
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

    def _complete(self, rows: FlatRows) -> TensorDictBase | None:
        """The complete n-step rows, None if there are none; the others are held back."""
        order = TrajectoryOrder.of(rows.leaves)
        check_groups(rows.leaves.items(), order.remaining == 1)
        waited = calls_pending(order, self._pending.waited, own=OWN_ID in rows.leaves)
        # rows of open trajectories with fewer than n rows from here on
        waiting = np.flatnonzero(order.is_open & (order.remaining < self.n_steps))
        # of each waiting row the newest row of its trajectory: it was seen in the latest call
        newest = order.sorted_rows[order.position[waiting] + order.remaining[waiting] - 1]
        waiting = waiting[waited[newest] < self.patience]
        is_complete = np.ones(len(rows), dtype=bool)
        is_complete[waiting] = False
        chosen = np.flatnonzero(is_complete)
        extended = self._made(rows, order, chosen) if len(chosen) else None
        held = (rows.take(rows.index(waiting)),) if len(waiting) else ()
        self._pending = PendingRows(held, waited[waiting])
        return extended

    def _by_column(self, batch: TensorDictBase, columns: PendingSteps) -> TensorDictBase | None:
        """The n-step rows of all but the last n - 1 steps of every environment."""
        fresh = FlatRows.of(batch)
        if not columns.blocks:
            self._check(batch, fresh)
        has_ids = _has_ids(fresh)
        if not has_ids:
            if not observed_pairs(fresh):
                return self._within_call(batch)
            columns.require_alike(fresh)
            held = columns.blocks.get(NO_PRODUCER)
            fresh = assign_ids(batch, fresh, held, self._given, columns=True)
        producer, rows = columns.joined(fresh)
        extended = self._all_but_last(rows, self.n_steps - 1)
        columns.keep(producer, rows, self.n_steps - 1)
        if extended is not None and (names := names_of(batch)):
            extended.names = names
        return extended if has_ids else self._with_warning(extended)

    def _all_but_last(self, rows: FlatRows, waiting: int) -> TensorDictBase | None:
        """The n-step rows of ``[*B, T]`` without the last `waiting` steps, None if none remain."""
        width = rows.shape[-1]
        if width <= waiting:
            return None
        order = TrajectoryOrder.of(rows.leaves)
        check_groups(rows.leaves.items(), order.remaining == 1)
        # flat rows [B * (T - waiting)]; the last steps only complete the spans of these
        chosen = np.arange(len(rows)).reshape(-1, width)[:, : width - waiting].reshape(-1)
        return self._made(rows, order, chosen, width - waiting)

    def _made(
        self, rows: FlatRows, order: TrajectoryOrder, chosen: Array, *width: int
    ) -> TensorDictBase:
        """The n-step rows that begin at some rows, with the ids that they were given."""
        made = self._horizon.n_step_rows(rows, order, chosen, *width)
        # rows of one step are told apart by their observations; no row is held to continue from
        return (made if self.n_steps == 1 else made.numbered()).batch()

    def _check(self, batch: TensorDictBase, fresh: FlatRows) -> None:
        has_deltas = any(key[:2] == keys.DELTA for key in fresh.leaves)
        cure = 'Compose(MultiStepTransform(...), NextObservationDelta(side="rebuild"))'
        check_single_steps(keys.STEPS_TO_NEXT_OBS in fresh.leaves, has_deltas, cure)
        fresh.check_markers()
        for key in self.in_keys:
            reward = fresh.leaves.get(next_key(key))
            if reward is None or not reward.is_floating_point():
                flat_reward(batch, key)  # raises the error

    def get_extra_state(self) -> dict[str, Any]:
        """Return the rows that are held back, for `state_dict`."""
        numbers = {"numbers": self._given.numbers.state()}
        if self._columns is not None:
            return {"columns": self._columns.state(), **numbers}
        held = self._pending.rows
        if held is None:
            return {"held": None, "waited": [], **numbers}
        rows = held.batch(own=True).to_dict()
        return {"held": rows, "waited": self._pending.waited.tolist(), **numbers}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the rows that `get_extra_state` returned."""
        if ("columns" in state) != (self._columns is not None):
            msg = "the state holds rows back as columns, or flat, and this transform does not: "
            raise ValueError(msg + "make it with the same columns=.")
        if "numbers" in state:
            self._given.numbers.load(state["numbers"])
        if self._columns is not None:
            self._columns.load(state["columns"])
            return
        waited, held = np.array(state["waited"], dtype=np.int64), state["held"]
        rows = () if held is None else (FlatRows.of(TensorDict(held, [len(waited)])),)
        self._pending = PendingRows(rows, waited)


def _numbered_here(held: FlatRows | None) -> FlatRows | None:
    """The held rows if their ids were assigned here; rows with stored ids match by those."""
    return held if held is not None and OWN_ID in held.leaves else None


def _has_ids(rows: FlatRows) -> bool:
    return keys.TRAJ_IDS in rows.leaves and keys.TRAJ_STEP in rows.leaves


def _time_dim(batch: TensorDictBase) -> int | None:
    """The time dimension, None if it is the last one."""
    names = names_of(batch) or []
    time: int = names.index(keys.TIME) if keys.TIME in names else batch.ndim - 1
    return None if time == batch.ndim - 1 else time
