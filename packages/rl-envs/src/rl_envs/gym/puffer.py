"""PufferLib's native vectors, which write into arrays of their own and reset rows by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_envs.gym.vector_env import GymVectorEnv
from rl_tensordict.types import Array

PARTS = ("single_observation_space", "single_action_space", "num_agents", "async_reset", "send")
MOST = 2**31  # seeds are ints of C


class PufferEnv(GymVectorEnv):
    """A native environment or a vector of PufferLib, `[num_agents]`: each agent is a row.

    Such a vector resets a row in the step that ends its episode, and has no switch for the last
    observations: those rows are marked `("collector", "next_missing")`, which estimators and losses
    leave out unless they are terminated, and one warning says so. A rollout or a collector marks
    them; steps by hand are refused at the end of an episode.

    Args:
        env: an object with `send`, `recv`, `async_reset` and the spaces of one agent. It is known
            by its methods; nothing is imported.
        categorical_action_encoding: take choices as int64 numbers instead of one-hot vectors.

    Raises:
        TypeError: it lacks a part of that interface.
        ValueError: it hands over some of its agents at a time.

    Example:
        >>> from pufferlib.ocean import squared  # doctest: +SKIP
        >>> PufferEnv(squared.Squared(num_envs=8)).rollout(20, break_when_any_done=False).shape
        ... # doctest: +SKIP
        torch.Size([8, 20])
    """

    def __init__(self, env: Any, *, categorical_action_encoding: bool = False) -> None:
        missing = [name for name in (*PARTS, "recv") if not hasattr(env, name)]
        if missing:
            msg = f"expected a vector of PufferLib: {type(env).__name__} has no {missing}."
            raise TypeError(msg)
        vector = PufferVector(env)
        super().__init__(vector, categorical_action_encoding=categorical_action_encoding)


class PufferVector(VectorEnv[Any, Any, Any]):
    """One of PufferLib with the methods of Gymnasium's vectors."""

    def __init__(self, env: Any) -> None:
        ready = getattr(env, "agents_per_batch", env.num_agents)
        if ready != env.num_agents:
            msg = (
                f"expected all of {env.num_agents} agents in a step, got {ready} at a time: make "
                f"the vector with a batch_size of all its environments."
            )
            raise ValueError(msg)
        self.env, self.num_envs = env, int(env.num_agents)
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Array, dict[str, Any]]:
        """Start all episodes, by the seed of all rows."""
        drawn = np.random.default_rng().integers(MOST) if seed is None else seed
        self.env.async_reset(int(drawn) % MOST)
        return self._received()[0], {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step every row. Arrays are those of the environment, which writes to them again."""
        self.env.send(actions)
        seen, reward, terminated, truncated = self._received()
        return seen, reward, terminated.astype(bool), truncated.astype(bool), {}

    def _received(self) -> tuple[Array, Array, Array, Array]:
        seen, reward, terminated, truncated, _, rows, acting = self.env.recv()
        if not np.all(acting) or not np.array_equal(rows, np.arange(self.num_envs)):
            msg = (
                f"agents {np.asarray(rows)[~np.asarray(acting, bool)].tolist()} are out, or not in "
                f"order: every agent acts in each step of a PufferEnv."
            )
            raise RuntimeError(msg)
        return seen, reward, terminated, truncated

    def close(self, **_: Any) -> None:
        """Close the environment."""
        self.env.close()
