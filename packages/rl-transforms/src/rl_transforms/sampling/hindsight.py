"""Hindsight experience replay: desired goals replaced by goals that were achieved."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import BatchRows, RowSource, keys
from rl_layout.keys import next_key
from rl_tensordict import CPU, NestedKey
from rl_tensordict.arguments import check_choice, check_number, check_type
from rl_transforms.entries import required, with_entries
from rl_transforms.history.walk import numbered_rows, walk_by, walk_to_end
from rl_transforms.transform import Transform

RELABELLED = (keys.COLLECTOR, "relabelled")
RowFunction = Callable[[TensorDictBase], Tensor]


class HindsightStrategy(StrEnum):
    """Which achieved goal of a trajectory replaces the desired one.

    Attributes:
        FUTURE: one achieved at this step or later, uniformly.
        FINAL: the one achieved at the last step.
        EPISODE: one achieved anywhere in the trajectory, uniformly.

    Example:
        >>> HindsightStrategy("final").name
        'FINAL'
    """

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"


class HindsightRelabel(Transform):
    """Replaces goals in sampled rows by goals that the same trajectory achieved.

    Each row is relabelled with probability `her_ratio`: its goal, at the root and under ``"next"``,
    becomes the ``("next", achieved)`` of a row of its trajectory. The reward is recomputed, and the
    termination if there is a function for it. The markers prove which rows share a trajectory: in
    the buffer through its `rl_layout.RowSource`, for single rows and slices; otherwise inside the
    batch. Only stored rows count, so the last step of an open trajectory is its newest one.

    Bool ``("collector", "relabelled")`` ``[*B, T]`` marks the rows with a new goal; the others are
    unchanged.

    See Andrychowicz et al., Hindsight Experience Replay, 2017.

    Args:
        reward_fn: from relabelled rows ``[K]`` to their rewards, ``[K]`` or ``[K, 1]``.
        her_ratio: probability that a row is relabelled.
        strategy: which goal; see `HindsightStrategy`.
        goal_key: the desired goal.
        achieved_goal_key: the achieved goal.
        terminated_fn: from relabelled rows ``[K]`` to whether they end the task, bool ``[K]`` or
            ``[K, 1]``; the flags stay as they are if None.
        reward_key: the reward, without ``"next"``.

    Raises:
        ValueError: the chance is outside [0, 1], or there is no such strategy.
        TypeError: a function is none.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> rows = trajectories([3])
        >>> for key in ("achieved_goal", ("next", "achieved_goal")):
        ...     rows[key] = rows[(*key[:-1], "observation") if key[0] == "next" else "observation"]
        >>> rows["desired_goal"] = torch.full((3, 2), 50.0)
        >>> def reward(rows):
        ...     return -(rows["next", "achieved_goal"] - rows["desired_goal"]).norm(dim=-1)
        >>> seen = HindsightRelabel(reward, her_ratio=1, strategy="final")(rows)
        >>> seen["desired_goal"][0].tolist(), seen["next", "reward"].flatten().tolist()
        ([7.0, 3.0], [-2.0, -1.0, -0.0])
    """

    online = False
    needs_rows = True
    places = frozenset({"buffer"})

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        reward_fn: RowFunction,
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = "future",
        goal_key: NestedKey = "desired_goal",
        achieved_goal_key: NestedKey = "achieved_goal",
        terminated_fn: RowFunction | None = None,
        reward_key: NestedKey = keys.REWARD,
    ) -> None:
        super().__init__([goal_key, achieved_goal_key, reward_key])
        for name, function in (("reward_fn", reward_fn), ("terminated_fn", terminated_fn)):
            check_type(name, function, Callable | None, "a function of rows")
        check_number("her_ratio", her_ratio)
        if not 0 <= her_ratio <= 1:
            msg = f"her_ratio: expected a chance from 0 to 1, got {her_ratio}."
            raise ValueError(msg)
        check_choice("strategy", strategy, list(HindsightStrategy))
        self.reward_fn, self.terminated_fn, self.her_ratio = reward_fn, terminated_fn, her_ratio
        self.strategy = HindsightStrategy(strategy)
        self.goal_key, self.achieved_goal_key = goal_key, achieved_goal_key
        self.reward_key = reward_key

    def forward(self, batch: TensorDictBase, source: RowSource | None = None) -> TensorDictBase:
        """Relabel some rows of a sample, drawn by torch's global generator.

        Args:
            batch: TED rows ``[*B, T]``, one step each.
            source: the rows of the buffer, by their write numbers.

        Returns:
            The rows, with ``("collector", "relabelled")``.

        Raises:
            KeyError: a goal, the reward or, with a source, ``("collector", "row")`` is missing.
            ValueError: the rows are n-step rows, desired and achieved goals differ in shape or
                dtype, or a function returned another shape.
        """
        self._check(batch)
        count, device = batch.batch_size.numel(), batch[self.goal_key].device
        # rows to relabel, int64 [K], on the host, where rows of a buffer are walked
        drawn = torch.rand(count, device=CPU).lt(self.her_ratio).nonzero()[:, 0]
        if len(drawn):
            reached, had = self._achieved_goals(batch, source, drawn)
            drawn, reached = drawn[had], reached[had].to(device)
        drawn = drawn.to(device)
        mark = torch.zeros(count, dtype=torch.bool, device=device).index_fill_(0, drawn, True)
        changes: dict[NestedKey, Tensor] = {RELABELLED: mark.reshape(batch.batch_size)}
        if not len(drawn):
            return with_entries(batch, changes)
        goals = [
            key
            for key in (self.goal_key, next_key(self.goal_key))
            if batch.get(key, None) is not None
        ]
        rows = with_entries(batch.reshape(-1)[drawn], dict.fromkeys(goals, reached))
        # changed rows [K], written over a copy of all of them
        made = {**dict.fromkeys(goals, reached), **self._evaluated(rows)}
        for key, fresh in made.items():
            stored = batch[key]
            flat = stored.reshape(count, *stored.shape[batch.ndim :])
            changes[key] = flat.index_copy(0, drawn, fresh).reshape(stored.shape)
        return with_entries(batch, changes)

    def _evaluated(self, rows: TensorDictBase) -> dict[NestedKey, Tensor]:
        """New rewards, and done flags, of relabelled rows."""
        reward = next_key(self.reward_key)
        made: dict[NestedKey, Tensor] = {reward: self._evaluate("reward_fn", rows, reward)}
        if self.terminated_fn is not None:
            ended, done = keys.NEXT_TERMINATED, rows.get(keys.NEXT_DONE, None)
            required(self, rows, ended)
            made[ended] = self._evaluate("terminated_fn", rows, ended)
            if done is not None:
                truncated = rows.get(keys.NEXT_TRUNCATED, None)
                made[keys.NEXT_DONE] = made[ended] if truncated is None else made[ended] | truncated
        return made

    def _evaluate(self, name: str, rows: TensorDictBase, like: NestedKey) -> Tensor:
        values, stored = getattr(self, name)(rows), rows[like]
        if values.shape not in (stored.shape, stored.shape[:-1]):
            msg = f"{name}: expected {list(stored.shape)} of {len(rows)} rows, got "
            raise ValueError(f"{msg}{list(values.shape)}.")
        answer: Tensor = values.reshape(stored.shape).to(stored.dtype)
        return answer

    def _achieved_goals(
        self, batch: TensorDictBase, source: RowSource | None, drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """An achieved goal for each drawn row ``[K, ...]``, and whether there is one, ``[K]``."""
        read_keys = [next_key(self.achieved_goal_key)]
        if batch.get(keys.NEXT_MISSING, None) is not None:
            read_keys.append(keys.NEXT_MISSING)
        if source is None:
            own = BatchRows(batch)
            preceding, ahead = own.extent(drawn.to(own.numbers.device))
            places = drawn + self._offset(preceding.cpu(), ahead.cpu())
            found, had = own.read(places.to(own.numbers.device), read_keys)
            # places are rows of the batch itself, so all are there
            mask = batch.get(keys.MASK, None)  # padding achieves no goal
            had = had.cpu() if mask is None else mask.reshape(-1).cpu()[drawn]
        else:
            source, numbers = numbered_rows(self, batch, source)
            found, had = source.read(self._goal_rows(numbers[drawn], source), read_keys)
        if len(read_keys) == 2:
            had = had & ~found[keys.NEXT_MISSING].to(had.device)
        return found[read_keys[0]], had

    def _goal_rows(self, rows: Tensor, source: RowSource) -> Tensor:
        """The row of the buffer whose achieved goal each row gets."""
        last, ahead = walk_to_end(rows, source.after)
        if self.strategy is HindsightStrategy.FINAL:
            return last
        if self.strategy is HindsightStrategy.FUTURE:
            return walk_by(rows, self._offset(ahead, ahead), source.after)
        first, preceding = walk_to_end(rows, source.before)
        # counted from the first row, so that one walk goes forward from there
        return walk_by(first, preceding + self._offset(preceding, ahead), source.after)

    def _offset(self, preceding: Tensor, ahead: Tensor) -> Tensor:
        """The offset of the row with the goal, given how many rows precede and follow each."""
        if self.strategy is HindsightStrategy.FINAL:
            return ahead
        if self.strategy is HindsightStrategy.FUTURE:
            preceding = torch.zeros_like(ahead)
        # uniform on [-preceding, ahead]
        # float64: a float32 below 1 times a large count can round up to the count
        share = torch.rand(len(ahead), dtype=torch.float64, device=ahead.device)
        return (share * (preceding + ahead + 1)).long() - preceding

    def _check(self, batch: TensorDictBase) -> None:
        for key in (self.goal_key, next_key(self.achieved_goal_key), next_key(self.reward_key)):
            required(self, batch, key)
        far = batch.get(keys.STEPS_TO_NEXT_OBS, None)
        if far is not None and bool((far != 1).any()):
            msg = "rows that reach several steps ahead hold rewards of the goals that were wanted: "
            raise ValueError(msg + "relabel single steps, and put MultiStep after this transform.")
        goal, reached = batch[self.goal_key], batch[next_key(self.achieved_goal_key)]
        if (goal.shape, goal.dtype) != (reached.shape, reached.dtype):
            msg = (
                f"expected goals wanted and reached alike, got {list(goal.shape)} of {goal.dtype} "
            )
            raise ValueError(f"{msg}and {list(reached.shape)} of {reached.dtype}.")
