"""EnvPool's environments: stepped by threads in C++, in the order in which they are ready."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.leaf_checks import cast_action, check_form
from rl_envs.env.spec_leaves import leaves_of
from rl_envs.gym.spaces.specs import spec_under
from rl_envs.gym.spaces.tree import assemble, value_at
from rl_envs.gym.vector_env import GymVectorEnv
from rl_envs.rollouts.column_steps import truncate_last
from rl_envs.rollouts.columns import Columns, as_array
from rl_envs.rollouts.policy_plan import PolicyPlan, policy_plan
from rl_envs.rollouts.request import Goal, RolloutRequest
from rl_envs.rollouts.surplus import SurplusSteps
from rl_layout import keys
from rl_tensordict.types import Array, KeyPath


class EnvPoolEnv(GymVectorEnv):
    """Environments of EnvPool, `[num_envs]`. Needs EnvPool: `pip install rl-envs[envpool]`.

    It is a `GymVectorEnv` that resets rows while others step, with seeds that count: EnvPool fixes
    them when a pool is made, so that the first reset after `set_seed` makes a new pool.

    With `wait_for` a rollout (with `break_when_any_done=False`, without a callback) acts on that
    many environments at a time, as they become ready, while the others still step. Every row has
    its own steps in order; nothing is padded, and surplus steps of a row open the next rollout. A
    policy then sees batches `[wait_for]`, and cannot have a recurrent state. Transforms around it,
    and steps by hand, wait for all rows.

    Args:
        env: an id that EnvPool knows.
        num_envs: how many environments.
        wait_for: how many must be ready; all of them where None. `num_envs` is a multiple.
        kwargs: as for `GymVectorEnv` (`categorical_action_encoding`, `info_keys`); everything else
            goes to `envpool.make`.

    Attributes:
        wait_for: as given.

    Raises:
        ImportError: EnvPool is not installed.
        ValueError: `wait_for` does not divide `num_envs`, or comes with `info_keys`.

    Example:
        >>> env = EnvPoolEnv("CartPole-v1", 8, wait_for=4)  # doctest: +SKIP
        >>> env.rollout(50, break_when_any_done=False).shape  # doctest: +SKIP
        torch.Size([8, 50])
    """

    env: Any

    def __init__(
        self, env: str, num_envs: int, *, wait_for: int | None = None, **kwargs: Any
    ) -> None:
        self.wait_for = num_envs if wait_for is None else wait_for
        if self.wait_for < 1 or num_envs % self.wait_for:
            msg = f"wait_for must divide num_envs, {num_envs}: got {wait_for}."
            raise ValueError(msg)
        if self.wait_for < num_envs and kwargs.get("info_keys") is not None:
            msg = "info_keys are shown where a step waits for all rows: leave out wait_for."
            raise ValueError(msg)
        own = {name: kwargs.pop(name) for name in OWN if name in kwargs}
        self._making = (env, {**kwargs, "num_envs": num_envs, "batch_size": self.wait_for})
        super().__init__(PoolVector(self._pool()), **own)
        one_hot = not own.get("categorical_action_encoding", False)
        acted = self.env.single_action_space
        self.single_action_spec = spec_under("action", acted, one_hot=one_hot)

    @property
    def is_async(self) -> bool:
        """Whether rollouts act on some rows while others still step."""
        return bool(self.wait_for < self.num_envs)

    def _pool(self, seeds: list[int] | None = None) -> Any:
        try:
            envpool = importlib.import_module("envpool")
        except ImportError as error:
            msg = "EnvPoolEnv needs EnvPool: pip install rl-envs[envpool]."
            raise ImportError(msg) from error
        name, options = self._making
        given = {} if seeds is None else {"seed": seeds}
        return envpool.make(name, env_type="gymnasium", **{**options, **given})

    def _restart(self, which: Array | None) -> None:
        seeds = [seed for seed in self._seeds if seed is not None]
        if which is None and seeds:
            self.env.unwrapped.replace(self._pool([seed % 2**31 for seed in seeds]))
            self._seeds = [None] * self.num_envs
        super()._restart(which)

    def own_steps(
        self, request: RolloutRequest, policy: Any, root: TensorDictBase | None
    ) -> PoolSteps | None:
        """Steps of the rows that are ready, where a rollout need not wait for all."""
        if not self.is_async or root is not None or request.breaks or request.callback is not None:
            return None
        return PoolSteps(self, request, None if policy is None else policy_plan(policy))


OWN = ("categorical_action_encoding", "info_keys")


class PoolVector(VectorEnv[Any, Any, Any]):
    """A pool of EnvPool as a vector: all rows in order, or the ones that are ready."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.num_envs = int(pool.config["num_envs"])
        self.single_observation_space = pool.single_observation_space
        self.single_action_space = pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = pool.render_mode
        self._under_way = 0

    def replace(self, pool: Any) -> None:
        """Replace the pool by another one of the same environments."""
        self.pool.close()
        self.pool, self._under_way = pool, 0

    def send(self, actions: Any, rows: Array) -> None:
        """Start a step of some rows, a multiple of the pool's batch; rows that are over reset."""
        self.pool.send(actions, rows.astype(np.int32))
        self._under_way += len(rows)

    def receive(self) -> tuple[Array, tuple[Any, Any, Any, Any, Any]]:
        """Wait for the next rows; returns their numbers and the results of their steps."""
        result = self.pool.recv()
        rows = np.asarray(result[-1]["env_id"])
        self._under_way -= len(rows)
        return rows, result

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start all episodes; steps still pending, after a policy has failed, are dropped."""
        while self._under_way:
            self.receive()
        self.pool.async_reset()
        self._under_way = self.num_envs
        observation, _, _, _, info = self._all()
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment, and wait for all of them."""
        if self._under_way:
            msg = f"{self._under_way} rows are under way since a rollout has failed: reset first."
            raise RuntimeError(msg)
        self.send(actions, np.arange(self.num_envs))
        return self._all()

    def _all(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        parts: list[Any] = []
        rows: list[Array] = []
        while sum(map(len, rows)) < self.num_envs:
            ready, result = self.receive()
            rows.append(ready)
            parts.append(result)
        order = np.argsort(np.concatenate(rows))
        joined: tuple[Any, Any, Any, Any, dict[str, Any]] = _joined(parts, order)
        return joined

    def close(self, **kwargs: Any) -> None:
        """Close the pool."""
        self.pool.close()


def _joined(parts: list[Any], order: Array) -> Any:
    """Concatenate batches of rows, in the given order."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts], order) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(each), order) for each in zip(*parts, strict=True))
    return np.concatenate(parts)[order]


class PoolSteps:
    """Steps of a pool, in which each row is at a column of its own; step t is one reply."""

    # rows are sent in groups of the size that the pool waits for, so that none is pending at the
    # end

    keeps_root = False

    def __init__(
        self, env: EnvPoolEnv, request: RolloutRequest, plan: PolicyPlan | None = None
    ) -> None:
        self.env, self.plan, self._continues = env, plan, request.continues
        self.num_steps = num_steps = request.max_steps
        self._actions = list(leaves_of(env.single_action_spec))
        self.columns = Columns(env.batch_size, num_steps + num_steps // 8 + 3)
        self._shown = env.layout.shown
        self.columns.add_leaves([*self._shown, *env.layout.action])
        self.columns.add_leaves([((keys.NEXT, *key), leaf) for key, leaf in env.layout.after])
        self._column = np.zeros(env.num_envs, np.int64)  # [num_envs], that of each row
        self._idle = np.ones(env.num_envs, bool)  # not under way
        self._written = {key for key, _ in env.layout.action}
        self._is_checked = False
        self._read = [key for key, _ in self._shown]
        if plan is not None and plan.in_keys is not None:
            plan.check_reads(self._read)
            self._read = plan.in_keys

    def start(self, root: None, goal: Goal) -> int:
        """Reset every row and write the first roots, or begin with the last surplus steps."""
        leftover, self.env.leftover = self.env.leftover, None  # lost where the policy fails
        if self._continues and leftover is not None:
            self._resume(leftover)
            return 0
        arrays = self.columns.arrays
        self.env.reset_into({key: arrays[key][:, 0] for key, _ in self._shown})
        return 0

    def _resume(self, leftover: SurplusSteps) -> None:
        mask = leftover.columns[keys.MASK].numpy()
        if mask.any() and not self._written <= leftover.written:
            msg = (
                "steps of another policy are left over: reset first, or continue with that policy."
            )
            raise ValueError(msg)
        self._column[:] = mask[:, :-1].sum(1)
        self._make_room(int(self._column.max()))
        for key, leaf in leftover.columns.items():
            if key == keys.MASK:
                continue
            if key not in self.columns.tensors:
                self.columns.add(key, leaf.shape[2:], leaf.dtype)
            for row, steps in enumerate(mask[:, :-1]):
                kept = leaf[row][[*np.flatnonzero(steps), -1]]
                self.columns.tensors[key][row, : len(kept)] = kept

    def act(self, t: int) -> None:
        """Let the policy act on rows that are ready, and send them."""
        self._send(self._column < self.num_steps)

    def step(self, t: int) -> bool:
        """Receive the rows that are ready next."""
        rows, result = self.env.env.unwrapped.receive()
        self._receive(rows, result)
        self._idle[rows] = True
        return True

    def advance(self, t: int) -> None:
        """Nothing: roots are written as they are received."""

    def is_over(self, t: int) -> bool:
        """Whether every row has its steps, and none is under way."""
        return bool(self._idle.all() and (self._column >= self.num_steps).all())

    def done(self, t: int) -> tuple[Array, int]:
        """Not asked for: rows that are done end no rollout of a pool."""
        raise NotImplementedError

    def at(self, t: int) -> TensorDictBase:
        """Not asked for: rows are at different steps."""
        raise NotImplementedError

    def batch(self, num_played: int, *, set_truncated: bool = False) -> TensorDictBase:
        """The batch `[num_envs, T]`; on request its last step is marked as truncated."""
        batch = self.columns.batch(self.num_steps, copy=True)
        self.env.leftover = self.leftover()
        if self.env.check_values:
            self.env.layout.check_rows(batch)
        if set_truncated:
            truncate_last(batch, 1)
        return batch

    def leftover(self) -> SurplusSteps:
        """The surplus steps of each row, and the root after them."""
        beyond = self._column - self.num_steps  # [num_envs], surplus steps of each row
        num_kept = int(beyond.max())
        # the last column is the root of every row, so its steps end right before it
        places = self._column[:, None] - np.arange(num_kept, -1, -1)
        mask = places >= self.num_steps
        mask[:, -1] = False
        rows, columns = torch.arange(len(places), device="cpu")[:, None], torch.from_numpy(places)
        kept = {key: leaf[rows, columns] for key, leaf in self.columns.tensors.items()}
        kept[keys.MASK] = torch.from_numpy(mask)
        return SurplusSteps(kept, set(self._written))

    def _send(self, unfinished: Array) -> None:
        """Send rows that need steps, in groups of what the pool waits for."""
        size, idle = self.env.wait_for, self._idle
        ready = np.flatnonzero(idle & unfinished)
        groups = [ready[i : i + size] for i in range(0, len(ready) - size + 1, size)]
        if not groups and len(ready) and idle.all():
            # the pool returns nothing unless a group is full: fill it with the rows of fewest steps
            finished = np.flatnonzero(idle & ~unfinished)
            finished = finished[np.argsort(self._column[finished], kind="stable")]
            groups = [np.concatenate([ready, finished])[:size]]
        for rows in groups:
            self._act(rows[~self.env.over_rows[rows]])
            self._take(rows)
            idle[rows] = False

    def _act(self, rows: Array) -> None:
        """Choose actions for some rows."""
        if not len(rows):
            return
        size = torch.Size([len(rows)])
        if self.plan is None:
            drawn = self.env.single_action_spec.rand((len(rows),))
            made: dict[KeyPath, Tensor] = dict(keys.leaves(drawn))
        else:
            made = self._fitted(self.plan(self._roots(rows, self._read), size))
        if not self._is_checked:
            self._check(made, size)
        for key, value in made.items():
            self.columns.arrays[key][rows, self._column[rows]] = as_array(value)

    def _fitted(self, made: dict[KeyPath, Tensor]) -> dict[KeyPath, Tensor]:
        """Cast actions to the dtype of their specs; every time, since numpy would cast the rest."""
        cast = {
            key: cast_action(key, spec, made[key])
            for key, spec in self._actions
            if isinstance(made.get(key), Tensor) and made[key].dtype != spec.dtype
        }
        return {**made, **cast} if cast else made

    def _roots(self, rows: Array, names: Iterable[KeyPath]) -> dict[KeyPath, Tensor]:
        arrays, at = self.columns.arrays, self._column[rows]
        return {key: torch.from_numpy(np.asarray(arrays[key][rows, at])) for key in names}

    def _check(self, made: dict[KeyPath, Tensor], size: torch.Size) -> None:
        """Check what the policy writes, once, and make columns for it."""
        nexts = [keys.as_key(key) for key in made if key[0] == keys.NEXT]
        if nexts:
            msg = (
                f"the policy carries {nexts} on, but a pool that returns some rows at a time "
                f"keeps no states: leave out wait_for."
            )
            raise ValueError(msg)
        for key, spec in self._actions:
            if key not in made:
                names = [keys.as_key(name) for name in made]
                msg = f"the action {keys.as_key(key)!r} is missing: the policy wrote {names}."
                raise KeyError(msg)
            check_form(key, spec, made[key], size, "action")
        for key, value in made.items():
            if key not in self.columns.tensors:
                self.columns.add(key, value.shape[1:], value.dtype)
        self._written = set(made)
        self._is_checked = True

    def _take(self, rows: Array) -> None:
        arrays, at = self.columns.arrays, self._column[rows]
        values = (read(arrays[key][rows, at]) for key, read in self.env.readers)
        space = self.env.env.single_action_space
        self.env.env.unwrapped.send(assemble(space, values), rows)

    def _receive(self, rows: Array, result: Any) -> None:
        """Write the results: steps, and first roots of rows that were over."""
        observation, reward, terminated, truncated, _ = result
        began = self.env.over_rows[rows]
        self._make_room(int(self._column[rows].max()) + 1)
        stepped, at = rows[~began], self._column[rows[~began]]
        arrays, over = self.columns.arrays, terminated | truncated
        values = (reward, terminated, truncated, over)
        for name, value in zip(("reward", "terminated", "truncated", "done"), values, strict=True):
            arrays[keys.NEXT, name][stepped, at, 0] = value[~began]
        self._column[stepped] += 1
        for key, path, write in self.env.writers:
            seen = np.empty((len(rows), *arrays[key].shape[2:]), arrays[key].dtype)
            write(seen, value_at(observation, path))
            arrays[(keys.NEXT, *key)][stepped, at] = seen[~began]
            arrays[key][rows, self._column[rows]] = seen
        self.env.over_rows[rows] = over & ~began

    def _make_room(self, last: int) -> None:
        if last + 1 >= self.columns.num_steps:
            self.columns.grow(last + last // 4 + 8)
