"""Whole trajectories out of batches that cut them: the pieces are held until they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_collect.arguments import as_flags, check_count
from rl_layout import keys
from rl_tensordict import CPU, Dimensions, Group, build, nest, tensors
from rl_tensordict.arguments import check_state
from rl_tensordict.types import LeafTensors


class WholeTrajectories:
    """Takes batches `[*B, T]`, holds what has not ended, returns what has.

    No row is dropped and none is returned twice. Rows come out environment by environment,
    trajectories end to end.

    Args:
        num_envs: how many environments play side by side, B flattened.
        max_held: most rows to hold; at that bound the longest pieces are cut.

    Attributes:
        held: how many rows are held.

    Raises:
        ValueError: `max_held` is below 1.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> whole = WholeTrajectories(num_envs=1)
        >>> batch = trajectories([3, 4])
        >>> len(whole.take(batch[:5])), whole.held, len(whole.take(batch[5:]))
        (3, 2, 4)
    """

    def __init__(self, num_envs: int, max_held: int = 1_000_000) -> None:
        self._num_envs = check_count(num_envs, 1, "num_envs")
        self._max_held = check_count(max_held, 1, "max_held")
        self._rows: LeafTensors = {}  # [held], oldest first
        self._dimensions = _dimensions([])  # of what is returned
        self._env = torch.empty(0, dtype=torch.int64, device=CPU)  # whose each of them is

    @property
    def held(self) -> int:
        """How many rows are held."""
        return len(self._env)

    @property
    def lengths(self) -> Tensor:
        """How many rows are held of each environment, int64 `[B]`."""
        return torch.bincount(self._env, minlength=self._num_envs)

    def take(self, batch: TensorDictBase, over: Tensor | None = None) -> TensorDict:
        """Add a batch, and return the trajectories that it completes.

        Args:
            batch: `[*B, T]`, what follows the batch before. It is not changed, and not kept.
            over: bool `[*B, T]`, the rows that end a trajectory; `("next", "done")` unless given.

        Returns:
            Whole trajectories, `[M]`; M is 0 where none ended.

        Raises:
            KeyError: the batch lacks an entry of those before, or has another one.
            ValueError: it is of another number of environments.
        """
        if not isinstance(batch, TensorDictBase) or not batch.ndim:
            msg = f"expected a batch [*B, T]: got {batch!r:.200}."
            raise TypeError(msg)
        num_steps = batch.shape[-1]
        if batch.numel() != self._num_envs * num_steps:
            msg = f"expected {self._num_envs} environments: got a batch {tuple(batch.shape)}."
            raise ValueError(msg)
        flag = keys.require(batch, keys.NEXT_DONE) if over is None else over
        if not isinstance(flag, Tensor) or flag.dtype != torch.bool:
            msg = f"over must be a bool tensor {tuple(batch.shape)}: got {flag!r:.200}."
            raise TypeError(msg)
        if flag.numel() != batch.numel():
            msg = f"over must have shape {tuple(batch.shape)}: got {tuple(flag.shape)}."
            raise ValueError(msg)
        held = torch.zeros(self.held, dtype=torch.bool, device=CPU)
        ends = torch.cat([held, flag.reshape(-1).cpu()])
        env = torch.arange(self._num_envs, device=CPU).repeat_interleave(num_steps)
        env = torch.cat([self._env, env])
        rows = self._joined({key: leaf.flatten(0, batch.ndim - 1) for key, leaf in _of(batch)})
        # held rows come before new ones, and the sort is stable: order of time in each environment
        order = torch.argsort(env, stable=True)
        self._dimensions = _dimensions(Dimensions.of(batch).groups)
        # rows with an end at or after them are complete, the others are held
        left = _ends_left(ends[order], env[order])
        return self._hand_out(rows, env, order[left > 0], order[left == 0])

    def cut(self, rows: Tensor | None = None) -> TensorDict:
        """Return pieces that have not ended; their last rows become truncations.

        Args:
            rows: bool `[B]`, of which environments; of all unless given.

        Returns:
            The pieces, `[M]`. What follows them must begin new trajectories.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> whole = WholeTrajectories(num_envs=1)
            >>> _ = whole.take(trajectories([3, 4])[:5])
            >>> whole.cut()["next", "truncated"].flatten().tolist()
            [False, True]
        """
        order = torch.argsort(self._env, stable=True)
        cut = torch.ones(self._num_envs, dtype=torch.bool, device=CPU)
        if rows is not None:
            cut = torch.from_numpy(as_flags(rows, (self._num_envs,), "rows").copy())
        chosen = cut[self._env[order]]
        env = self._env[order[chosen]]
        pieces = self._hand_out(self._rows, self._env, order[chosen], order[~chosen])
        if len(pieces):
            newest = torch.ones(1, dtype=torch.bool, device=CPU)
            truncate_rows(pieces, torch.cat([env[1:] != env[:-1], newest]))
        return pieces

    def over_bound(self) -> Tensor:
        """Choose the longest pieces, of which enough that the rest is within the bound.

        Returns:
            bool `[B]`, the environments to `cut`.

        Example:
            >>> WholeTrajectories(num_envs=3).over_bound()
            tensor([False, False, False])
        """
        lengths, order = self.lengths.sort(descending=True)
        before = self.held - (lengths.cumsum(0) - lengths)  # held while the longer ones are cut
        chosen = torch.zeros(self._num_envs, dtype=torch.bool, device=CPU)
        chosen[order] = before > self._max_held
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """The rows that are held.

        Returns:
            Tensors, and the dimensions of groups.
        """
        rows = build(nest(self._rows), self._env.shape)
        groups = [list(group) for group in self._dimensions.groups]
        return {"rows": rows.clone().to_dict(), "env": self._env.clone(), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold the rows of a saved state instead.

        Args:
            state: what `state_dict` returned.
        """
        check_state(type(self).__name__, state, ("env", "rows"))
        if not isinstance(state["env"], Tensor) or not isinstance(state["rows"], dict):
            found = type(state["env"]).__name__
            msg = f"the state is of something else: expected a tensor 'env', got {found}."
            raise TypeError(msg)
        self._env = state["env"].clone()
        self._rows = dict(_of(TensorDict(state["rows"], [len(self._env)]).clone()))
        self._dimensions = _dimensions(state.get("groups", []))

    def _joined(self, fresh: LeafTensors) -> LeafTensors:
        if not self.held:
            return fresh
        if fresh.keys() != self._rows.keys():
            differ = [keys.as_key(key) for key in fresh.keys() ^ self._rows.keys()]
            msg = f"batches of one run must have the same entries: {differ} are not in both."
            raise KeyError(msg)
        return {key: torch.cat([self._rows[key], leaf]) for key, leaf in fresh.items()}

    def _hand_out(self, rows: LeafTensors, env: Tensor, out: Tensor, stay: Tensor) -> TensorDict:
        self._rows = {key: leaf.index_select(0, stay.to(leaf.device)) for key, leaf in rows.items()}
        self._env = env[stay]
        found = {key: leaf.index_select(0, out.to(leaf.device)) for key, leaf in rows.items()}
        return self._dimensions.give(build(nest(found), out.shape))


class TrajectoryQueue:
    """Whole trajectories that wait to be returned, first come, first out."""

    def __init__(self) -> None:
        self._rows: list[TensorDictBase] = []
        self._lengths: list[int] = []

    @property
    def count(self) -> int:
        """How many trajectories wait."""
        return len(self._lengths)

    def push(self, rows: TensorDictBase) -> None:
        """Add trajectories."""
        if len(rows):
            self._rows.append(rows)
            ids = rows.get(keys.TRAJ_IDS)
            self._lengths += torch.unique_consecutive(ids, return_counts=True)[1].tolist()

    def pop(self, count: int | None) -> TensorDictBase | None:
        """Take the first ones."""
        if not self._rows:
            return None
        rows = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        num_rows = sum(self._lengths[:count])
        out, left = rows[:num_rows], rows[num_rows:]
        self._rows = [left] if len(left) else []
        self._lengths = [] if count is None else self._lengths[count:]
        return out

    def state_dict(self) -> dict[str, Any]:
        """All that waits."""
        groups = [[list(group) for group in Dimensions.of(rows).groups] for rows in self._rows]
        return {"rows": [rows.clone().to_dict() for rows in self._rows], "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the trajectories of a saved state wait instead."""
        self._rows, self._lengths = [], []
        groups = state.get("groups", [[]] * len(state["rows"]))
        for rows, dimensions in zip(state["rows"], groups, strict=True):
            found = TensorDict(rows).auto_batch_size_(1).clone()
            self.push(_dimensions(dimensions).give(found))


def truncate_rows(batch: TensorDictBase, last: Tensor) -> None:
    """Mark rows as the last of their data, where the task continues; in place."""
    found = [keys.as_tuple(key) for key in batch.keys(True, True)]
    for key in found:
        if key[0] != keys.NEXT or key[-1] != keys.DONE:
            continue
        done = batch.get(key)
        mark = last.to(done.device).reshape(*last.shape, *[1] * (done.ndim - last.ndim))
        place = key[:-1]
        cut = mark & ~batch.get((*place, keys.TERMINATED))
        batch.set((*place, keys.TRUNCATED), batch.get((*place, keys.TRUNCATED)) | cut)
        batch.set(key, done | mark)


def _of(batch: TensorDictBase) -> list[tuple[tuple[str, ...], Tensor]]:
    return list(tensors(batch).items())


def _dimensions(groups: Iterable[Iterable[Any]]) -> Dimensions:
    """The dimensions of rows `[M]` with these groups."""
    return Dimensions([keys.TIME], [Group(*group) for group in groups])


def _ends_left(ends: Tensor, env: Tensor) -> Tensor:
    """How many ends lie at or after each row of its environment; rows by environment."""
    remaining = ends.flip(0).cumsum(0).flip(0)
    # minus those of the environments that follow
    following = torch.bincount(env[ends], minlength=int(env.max()) + 1 if len(env) else 0)
    after = following.flip(0).cumsum(0).flip(0) - following
    return remaining - after[env]
