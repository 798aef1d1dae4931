"""The default binding of an environment to the columns of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_envs.env.interface import Environment
from rl_envs.rollouts.arrays import Array, RowArrays


class RowBinding:
    """Binds any environment by its `reset_into` and `step_into`."""

    def __init__(self, env: Environment, root: RowArrays, after: RowArrays) -> None:
        self.env, self.root, self.after = env, root, after
        self._before: tuple[Any, ...] = (slice(None),) * len(env.batch_size)
        inputs = (*env.action_leaves, *env.observation_leaves, *env.state_leaves)
        self._inputs = {key: root[key] for key, _ in inputs if key in root}
        shown = (*env.observation_leaves, *env.done_leaves)
        self._shown = {key: root[key] for key, _ in shown if key in root}

    def start(self) -> None:
        """Reset every row and write column 0 of the root."""
        self.env.reset_into(self._column(self._shown, 0))

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        self.env.step_into(self._column(self._inputs, t), self._column(self.after, t))
        return bool(self.after["done",][(*self._before, t)].any())

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows that are done in column t are reset."""
        rows = self._column(self._shown, t + 1)
        for key, row in rows.items():
            row[...] = self.after[key][(*self._before, t)]
        done = self.after["done",][(*self._before, t)]
        if done.any():
            self.env.reset_into(rows, done)

    def set_policy_next_keys(self, names: set[tuple[str, ...]]) -> None:
        """Nothing changes: what is under `"next"` is no input of the environment."""

    def _column(self, columns: Mapping[tuple[str, ...], Array], t: int) -> dict[Any, Array]:
        # the ellipsis keeps a row without dimensions an array that can be written to
        return {key: column[(*self._before, t, ...)] for key, column in columns.items()}
