"""EnvPool's environments: stepped by threads in C++, in the order in which they are ready."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDictBase

from rl_envs.gym import envpool_rollout
from rl_envs.gym.spaces.specs import spec_under
from rl_envs.gym.vector_env import GymVectorEnv
from rl_envs.rollouts.arrays import Array
from rl_envs.rollouts.tensordict_loop import Request


class EnvPoolEnv(GymVectorEnv):
    """Environments of EnvPool, `[num_envs]`. Needs EnvPool: `pip install rl-envs[envpool]`.

    It is a `GymVectorEnv` that resets rows while others step, with seeds that count: EnvPool fixes
    them when a pool is made, so that the first reset after `set_seed` makes a new pool.

    With `wait_for` a rollout (with `break_when_any_done=False`, without a callback) acts on
    whichever environments are ready, as many at a time, and sends these on while the others still
    step. Every row has its own steps in their order; nothing is padded, and what a row has played
    beyond the rollout opens the next one. A policy then sees batches `[wait_for]`, and cannot have
    a recurrent state. Transforms around it, and steps by hand, wait for all rows.

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
        super().__init__(InOrder(self._pool()), **own)
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

    def _played(self, request: Request, root: TensorDictBase | None) -> TensorDictBase:
        breaks = request.break_when_any_done or request.break_when_all_done
        if self.is_async and root is None and not breaks and request.callback is None:
            return envpool_rollout.play(self, request)
        return super()._played(request, root)


OWN = ("categorical_action_encoding", "info_keys")


class InOrder(VectorEnv[Any, Any, Any]):
    """A pool as a vector: all rows at once in their order, or as many as are ready.

    Args:
        pool: of EnvPool, made with `env_type="gymnasium"`.

    Example:
        >>> InOrder(pool).reset()  # doctest: +SKIP
    """

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
        """Go on with another pool, of the same environments."""
        self.pool.close()
        self.pool, self._under_way = pool, 0

    def send(self, actions: Any, rows: Array) -> None:
        """Let some environments take a step, or a reset where they are over.

        Args:
            actions: a batch, one for each.
            rows: whole numbers, which they are; a multiple of what the pool waits for.
        """
        self.pool.send(actions, rows.astype(np.int32))
        self._under_way += len(rows)

    def receive(self) -> tuple[Array, tuple[Any, Any, Any, Any, Any]]:
        """Wait until enough environments are ready.

        Returns:
            Which they are, and what their steps gave.
        """
        result = self.pool.recv()
        rows = np.asarray(result[-1]["env_id"])
        self._under_way -= len(rows)
        return rows, result

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start all episodes; what is under way, after a policy has failed, is dropped."""
        while self._under_way:
            self.receive()
        self.pool.async_reset()
        self._under_way = self.num_envs
        observation, _, _, _, info = self._all()
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Let every environment take a step, and wait for all of them."""
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
        """Let go of the pool."""
        self.pool.close()


def _joined(parts: list[Any], order: Array) -> Any:
    """Batches of some rows each, put behind each other and in order."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts], order) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(each), order) for each in zip(*parts, strict=True))
    return np.concatenate(parts)[order]
