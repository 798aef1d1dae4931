"""Environments through numpy rows: for loops that write batches and shared memory in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

from tensordict import TensorDictBase

from rl_envs.env.arrays import RowArrays
from rl_envs.env.binding import OneColumn, RowBinding, bind_rows
from rl_envs.env.interface import Binding, Environment
from rl_envs.env.row_arguments import explain_arguments
from rl_tensordict.types import Array
from rl_transforms import Compose

STEPS = ("step", "reset", "_step", "_reset")


class EnvRows:
    """An environment through numpy rows, for loops that write batches in place."""

    # whether its binding writes rows itself; otherwise they go through tensordicts
    native_rows: bool = False
    # whether it steps from its action alone, in rows that it writes itself. Transforms around it
    # may read more
    reads_actions_only: bool = False
    # whether a row that is done is reset while the others step, which is no step of its own: its
    # binding marks such rows in `("collector", "mask")`
    resets_by_stepping: bool = False
    # whether it may lack the last observations of episodes: its binding marks such rows in
    # `("collector", "next_missing")`
    marks_missing: bool = False
    leftover: Any = None  # steps after the end of the last rollout of such an environment, or None
    # the last step `[*B]` of the last rollout, where a transform of finished rows has removed
    # entries that the next step starts from; otherwise None
    reached: TensorDictBase | None = None

    @explain_arguments
    def split(self, in_keys: Sequence[tuple[str, ...]] | None) -> tuple[Environment, Compose]:
        """Split into the environment to bind or step, and the transforms of its finished rows."""
        # `in_keys` is what the policy reads, None if that is not known. `apply_deferred` applies
        # the transforms, without rows that are only reset.
        return cast("Environment", self), Compose()

    @explain_arguments
    def reset_into(self, rows: RowArrays, mask: Array | None = None) -> None:
        """Start trajectories and write their first root into numpy rows."""
        # rows: arrays `[*B, ...]` by key: those of `observation_spec` and the done flags. Rows
        #     outside the mask are left as they are.
        # mask: bool `[*B, 1]`, the rows to reset; all where None.
        env = cast("Environment", self)
        which = ... if mask is None else mask[..., 0]
        for key, _ in env.layout.done:
            if key in rows:  # a reset need not write flags that are False
                rows[key][which] = False
        bind_rows(env, rows, {}).start(mask)

    @explain_arguments
    def step_into(self, root: RowArrays, after: RowArrays) -> None:
        """Take one step, from numpy rows into numpy rows."""
        # root: arrays `[*B, ...]` by key: actions, and what else the environment reads. They are
        #     not changed.
        # after: arrays `[*B, ...]` by key without `"next"`: observations, rewards, done flags. What
        #     it has no array for is dropped.
        bind_rows(cast("Environment", self), root, after).step(0)

    @explain_arguments
    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns of a batch, to step through them in place."""
        # root: arrays `[*B, T, ...]` by key. T may be one more than in `after`, to hold the root
        #     that follows the last step.
        # after: arrays `[*B, T, ...]` by key without `"next"`; `("done",)` is among them.
        return RowBinding(cast("Environment", self), root, after)

    def binding_settings(self) -> Any:
        """What a binding depends on besides specs and columns, as a record to `agree`."""
        return None

    @property
    def random_policy(self) -> Any:
        """What acts where no policy is given, if actions cannot be drawn ahead; else None."""
        return None

    def own_steps(self, request: Any, policy: Any, root: TensorDictBase | None) -> Any:
        """Make steps of a kind of its own for a rollout (`rl_envs.rollouts`); None by default."""
        return None

    @explain_arguments
    def bind_step(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind columns `[*B, 1, ...]` for steps by hand, which may follow other rules."""
        return self.bind(root, after)

    @cached_property
    def _one_column(self) -> OneColumn:
        return OneColumn(cast("Environment", self))

    def _steps_by_rows(self, root: TensorDictBase) -> bool:
        """Whether a step from this root can go through rows, where nothing of it is lost."""
        return self.native_rows and self.reads_actions_only and not self.has_steps_set()

    def has_steps_set(self) -> bool:
        """Whether a step or a reset was set on this very object, as `env._step = ...` does."""
        own = self.__dict__
        return "_step" in own or "_reset" in own or "step" in own or "reset" in own

    def _has_steps_of(self, kind: type) -> bool:
        """Whether the binding of a class does what steps and resets do, in this subclass too."""
        # a subclass with a binding of its own is trusted
        own: Any = type(self)
        is_bound = own.bind is not getattr(kind, "bind")  # noqa: B009 - for mypy
        return is_bound or all(getattr(own, name) is getattr(kind, name) for name in STEPS)

    def _refuse_steps_unlike(self, kind: type) -> None:
        """Raise where a vector that resets rows while others step has steps unlike a class."""
        if not self._has_steps_of(kind) or self.has_steps_set():
            msg = (
                f"{type(self).__name__} has a step or a reset of its own, which a rollout of a "
                "vector that resets rows while others step would not call. Change what comes by "
                "a transform, or take autoreset_mode=AutoresetMode.SAME_STEP."
            )
            raise TypeError(msg)

    @property
    def _resets_by_rows(self) -> bool:
        """Whether resets can go through rows."""
        return self.native_rows and self.reads_actions_only and not self.has_steps_set()
