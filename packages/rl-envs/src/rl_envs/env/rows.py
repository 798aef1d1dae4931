"""Environments through numpy rows: for loops that write batches and shared memory in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_envs.env.interface import Binding, Environment
from rl_envs.env.row_arguments import explain_arguments
from rl_envs.rollouts.arrays import Array, RowArrays
from rl_envs.rollouts.binding import RowBinding
from rl_envs.rollouts.surplus import SurplusSteps
from rl_layout import keys
from rl_tensordict import build, nest
from rl_transforms import Compose


class EnvRows:
    """An environment through numpy rows, for loops that write batches in place.

    Attributes:
        native_rows: whether its binding writes rows itself; otherwise they go through tensordicts.
        reads_actions_only: whether it steps from its action alone, in rows that it writes itself.
            Transforms around it may read more.
        resets_by_stepping: whether a row that is done is reset while the others step, which is no
            step of its own: its binding marks such rows in `("collector", "mask")`.
        leftover: steps after the end of the last rollout of such an environment, or None.
        reached: the last step `[*B]` of the last rollout, where a transform of finished rows has
            removed entries that the next step starts from; otherwise None.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> CountingEnv().native_rows
        False
    """

    native_rows: bool = False
    reads_actions_only: bool = False
    resets_by_stepping: bool = False
    leftover: SurplusSteps | None = None
    reached: TensorDictBase | None = None

    @explain_arguments
    def split(self, in_keys: Sequence[tuple[str, ...]] | None) -> tuple[Environment, Compose]:
        """Split into what must run at every step and what can be computed on finished rows.

        Args:
            in_keys: what the policy reads; None where that is not known.

        Returns:
            The environment to bind or to step, and the transforms to apply to its finished rows
            (`deferred_transforms.apply_deferred`), from which rows only reset are left out.

        Example:
            >>> from rl_transforms import RewardSum
            >>> from rl_envs import TransformedEnv
            >>> from rl_envs.testing import CountingEnv
            >>> env, deferred = TransformedEnv(CountingEnv(), RewardSum()).split([])
            >>> type(env).__name__, len(deferred)
            ('CountingEnv', 1)
        """
        return cast("Environment", self), Compose()

    @explain_arguments
    def reset_into(self, rows: RowArrays, mask: Array | None = None) -> None:
        """Start trajectories and write their first root into numpy rows.

        Args:
            rows: arrays `[*B, ...]` by key: those of `observation_spec` and the done flags. Rows
                outside the mask are left as they are.
            mask: bool `[*B, 1]`, the rows to reset; all where None.

        Raises:
            RuntimeError: as for `reset`.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> rows = {("observation",): np.full(1, 9.0, dtype="float32")}
            >>> CountingEnv().reset_into(rows)
            >>> rows["observation",].tolist()
            [0.0]
        """
        reset_into(cast("Environment", self), rows, mask)

    @explain_arguments
    def step_into(self, root: RowArrays, after: RowArrays) -> None:
        """Take one step, from numpy rows into numpy rows.

        Args:
            root: arrays `[*B, ...]` by key: actions, and what else the environment reads. They are
                not changed.
            after: arrays `[*B, ...]` by key without `"next"`: observations, rewards, done flags.
                What it has no array for is dropped.

        Raises:
            RuntimeError: as for `step`.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> after = {("reward",): np.zeros(1, dtype="float32")}
            >>> env.reset_into({})
            >>> env.step_into({("action",): np.array([True, False])}, after)
            >>> after["reward",].tolist()
            [1.0]
        """
        step_into(cast("Environment", self), root, after)

    @explain_arguments
    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns of a batch, to step through them in place.

        Args:
            root: arrays `[*B, T, ...]` by key. T may be one more than in `after`, to hold the root
                that follows the last step.
            after: arrays `[*B, T, ...]` by key without `"next"`; `("done",)` is among them.

        Returns:
            What resets into and steps from column to column.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> root = {("observation",): np.full((4, 1), 9.0, dtype="float32")}
            >>> CountingEnv().bind(root, {}).start()
            >>> root["observation",].flatten().tolist()
            [0.0, 9.0, 9.0, 9.0]
        """
        return RowBinding(cast("Environment", self), root, after)


def reset_into(env: Environment, rows: RowArrays, mask: Array | None) -> None:
    """Reset an environment through a tensordict, and write the root into rows."""
    if mask is None:
        write(rows, env.reset())
        return
    root = as_tensordict(rows, env.batch_size)
    root.set("_reset", torch.from_numpy(mask.copy()))
    write(rows, env.reset(root))


def step_into(env: Environment, root: RowArrays, after: RowArrays) -> None:
    """Step an environment through a tensordict, and write what comes into rows."""
    step = env.step(as_tensordict(root, env.batch_size))
    write(after, step.get("next"))


def as_tensordict(rows: RowArrays, batch_size: torch.Size) -> TensorDictBase:
    """Copy rows into a tensordict: environments may keep their inputs."""
    return build(
        nest({key: torch.from_numpy(np.array(row)) for key, row in rows.items()}), batch_size
    )


def write(rows: RowArrays, tensordict: TensorDictBase) -> None:
    """Write the entries of a tensordict into rows, in place."""
    for key, row in rows.items():
        row[...] = keys.require(tensordict, keys.as_key(key)).detach().cpu().numpy()
