"""Transforms that step or reset the environment themselves."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Composite
from rl_tensordict import NestedKey
from rl_transforms.transform import Transform


class Driven(Protocol):
    """The part of an environment that a `Driver` can use.

    Roots and results are ``[*B]``. Rows outside a mask are not stepped; their values in the result
    are arbitrary.

    Attributes:
        batch_size: the sizes ``[*B]``.
        reward_keys: all rewards, without ``"next"``.
        full_action_spec: specs of all actions.

    Example:
        >>> Driver.drives
        'step'
    """

    batch_size: torch.Size

    @property
    def reward_keys(self) -> list[NestedKey]:
        """All rewards."""

    @property
    def full_action_spec(self) -> Composite:
        """Specs of all actions."""

    def step_rows(self, root: TensorDictBase, rows: Tensor | None = None) -> TensorDictBase:
        """Step some rows, bool ``[*B]``, or all, from a root with actions; return ``"next"``."""

    def reset_rows(self, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Reset some rows, bool ``[*B]``; the new root, in which the others are as before."""

    def following(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Make the root that follows a step."""

    def over(self, after: TensorDictBase) -> Tensor:
        """Return which rows are done after a step, bool ``[*B]``."""

    def merge(self, old: TensorDictBase, new: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Take some rows, bool ``[*B]``, of `new` and the others of `old`."""


class Driver(Transform):
    """A transform that steps the environment itself.

    The transformed environment calls `drive_step` instead of a step, or `drive_reset` after a
    reset. The transforms ahead of it are part of the environment that it drives.

    Attributes:
        drives: ``"step"`` or ``"reset"``, the one that it changes.

    Example:
        >>> Driver().check_place("worker")
    """

    drives: Literal["step", "reset"] = "step"
    places = frozenset({"environment", "worker"})

    def drive_step(self, env: Driven, root: TensorDictBase) -> TensorDictBase:
        """Step an environment.

        Args:
            env: the environment.
            root: ``[*B]``, with actions.

        Returns:
            The entries under ``"next"``.
        """
        return env.step_rows(root)

    def drive_reset(
        self, env: Driven, root: TensorDictBase, mask: Tensor | None = None
    ) -> TensorDictBase:
        """Step from a reset to the first root of the episode.

        Args:
            env: the environment.
            root: ``[*B]``, after its reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The first root; rows outside the mask are unchanged.
        """
        del mask  # all rows are as the reset left them
        return root

    def seed(self, seed: int) -> None:
        """Reseed the transform's own generator.

        Args:
            seed: 0 or more.
        """
