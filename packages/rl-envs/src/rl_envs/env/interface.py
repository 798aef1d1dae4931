"""The protocols of environments and of their bindings, for checks and rollout loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase

from rl_envs.env.arrays import RowArrays
from rl_envs.env.layout import EnvLayout
from rl_specs import Composite
from rl_tensordict.types import Array, KeyPath
from rl_transforms import Compose, Transform


class Binding(Protocol):
    """An environment bound to the columns of a batch `[*B, T, ...]`, root and `"next"`."""

    def start(self, mask: Array | None = None) -> None:
        """Reset the rows of a mask, bool `[*B, 1]`, or all, and write them to column 0."""

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows whose `done` is set in column t are reset."""

    def set_policy_next_keys(self, names: set[tuple[str, ...]]) -> None:
        """Set the entries of `"next"` that the policy writes before each step."""


class Environment(Protocol):
    """The interface of `EnvBase` for the modules that it imports."""

    batch_size: torch.Size
    device: torch.device
    batch_locked: bool
    check_values: bool
    waits_for_device: bool
    native_rows: bool
    reads_actions_only: bool
    resets_by_stepping: bool
    marks_missing: bool
    leftover: Any  # SurplusSteps of the last rollout, or None
    reached: TensorDictBase | None
    is_closed: bool
    is_started: bool

    @property
    def outer(self) -> Iterable[Transform]:
        """The transforms around what it steps."""

    @property
    def full_action_spec(self) -> Composite:
        """Specs of all actions."""

    @property
    def done_groups(self) -> list[KeyPath]:
        """Prefixes of the groups with done flags."""

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start trajectories."""

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take one step."""

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows of a root that are done."""

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Add random actions to a root."""

    def render(self) -> torch.Tensor:
        """Render a frame."""

    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns of a batch."""

    def bind_step(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind columns of one step, for steps and resets by hand."""

    def split(self, in_keys: Sequence[tuple[str, ...]] | None) -> tuple[Environment, Compose]:
        """Split into what must step and the transforms that can wait for finished rows."""

    @property
    def layout(self) -> EnvLayout:
        """The leaves of its data and its done groups."""

    def count_move(self) -> None:
        """Count one more move."""

    def binding_settings(self) -> Any:
        """What a binding depends on apart from specs and columns, or None if that is not known."""

    @property
    def random_policy(self) -> Any:
        """What acts where no policy is given, if actions cannot be drawn ahead; else None."""

    def own_steps(self, request: Any, policy: Any, root: TensorDictBase | None) -> Any:
        """Steps of a kind of its own for a rollout, or None."""

    def raw_reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Call `_reset`, whose result is not checked yet."""

    def raw_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Call `_step`, whose result is not checked yet."""

    def complete_step(self, after: TensorDictBase) -> TensorDictBase:
        """Check and complete the result of `_step`, on a copy."""

    def next_root(self, step: TensorDictBase) -> TensorDictBase:
        """Make the root after a step; done flags are kept."""
