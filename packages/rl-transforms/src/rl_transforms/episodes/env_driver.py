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
    """What a transform may do with the environment that it drives.

    Roots and results are ``[*B]``. Rows outside a mask stand still, and hold nothing that counts in
    what comes back.

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
        ...

    @property
    def full_action_spec(self) -> Composite:
        """Specs of all actions."""
        ...

    def step_rows(self, root: TensorDictBase, rows: Tensor | None = None) -> TensorDictBase:
        """Step some rows, bool ``[*B]``, or all, from a root with actions; what comes after."""
        ...

    def reset_rows(self, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Reset some rows, bool ``[*B]``; the new root, in which the others are as before."""
        ...

    def following(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Make the root that follows a step."""
        ...

    def over(self, after: TensorDictBase) -> Tensor:
        """Tell which rows a step has ended, bool ``[*B]``."""
        ...

    def merge(self, old: TensorDictBase, new: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Take some rows, bool ``[*B]``, of one and the others of the other."""
        ...


class Driver(Transform):
    """A transform that takes steps of its own: it needs an environment that it can drive.

    An environment in whose rows it sits calls `drive_step` in place of its step, or `drive_reset`
    after its reset. What stands in front of it belongs to the environment that it drives.

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
            What is under ``"next"``.
        """
        return env.step_rows(root)

    def drive_reset(
        self, env: Driven, root: TensorDictBase, mask: Tensor | None = None
    ) -> TensorDictBase:
        """Go on from a reset, to what counts as the first root.

        Args:
            env: the environment.
            root: ``[*B]``, after its reset.
            mask: bool ``[*B]``, the rows that were reset; None where all were.

        Returns:
            The root to start from; rows outside the mask as they were.
        """
        del mask  # all rows are as the reset left them
        return root

    def seed(self, seed: int) -> None:
        """Start the transform's own random numbers anew.

        Args:
            seed: 0 or more.
        """
