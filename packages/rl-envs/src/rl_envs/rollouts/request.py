"""What a rollout is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from rl_envs.rollouts.policy_plan import device_of
from rl_layout import keys
from rl_tensordict.arguments import check_whole
from rl_tensordict.types import Array


@dataclass(frozen=True)
class RolloutRequest:
    """What a rollout is asked for.

    Args:
        max_steps: most steps to play, at least 1.
        callback: called with the environment and each finished step.
        break_when_any_done: stop as soon as a row is done.
        break_when_all_done: stop as soon as every row has been done once.
        set_truncated: mark the last step as truncated, unless it is terminated.
        continues: begin with the surplus steps of the last rollout, if there are some.

    Raises:
        TypeError: `max_steps` is no whole number.
        ValueError: `max_steps` is less than 1, or both breaks are asked for.

    Example:
        >>> RolloutRequest(5).breaks, RolloutRequest(5, break_when_any_done=False).breaks
        (True, False)
    """

    max_steps: int
    callback: Callable[..., Any] | None = None
    break_when_any_done: bool = True
    break_when_all_done: bool = False
    set_truncated: bool = False
    continues: bool = False

    def __post_init__(self) -> None:
        check_whole("max_steps", self.max_steps, 1)
        if self.break_when_any_done and self.break_when_all_done:
            msg = "break_when_all_done needs break_when_any_done=False: both were asked for."
            raise ValueError(msg)

    @cached_property
    def breaks(self) -> bool:
        """Whether the rollout may end before `max_steps`."""
        return self.break_when_any_done or self.break_when_all_done


class Goal:
    """How many steps each row is to take: T, which falls where rows that are done end a rollout."""

    def __init__(self, request: RolloutRequest) -> None:
        self.request, self.num_steps = request, request.max_steps
        self._first_ends: Array | None = None  # [rows], the length of each row when it first ended

    def note(self, done: Array, lengths: Array | int) -> None:
        """Take note of the rows that a step has ended, bool `[rows]`, and of their lengths by now.

        Rows that the step only reset are not done.
        """
        if self._first_ends is None:
            self._first_ends = np.zeros(done.shape, np.int64)
        first = done & (self._first_ends == 0)
        self._first_ends = np.where(first, lengths, self._first_ends)
        ends = self._first_ends[self._first_ends > 0]
        if self.request.break_when_any_done and ends.size:
            self.num_steps = min(self.num_steps, int(ends.min()))
        elif ends.size == self._first_ends.size:
            self.num_steps = min(self.num_steps, int(ends.max()))


def without_steps(policy: Any) -> Any:
    """Replace `env.rand_step` by None, random actions: the rollout itself takes the steps."""
    takes_steps = getattr(policy, "__name__", None) == "rand_step" and hasattr(policy, "__self__")
    return None if takes_steps else policy


def on_own_device(policy: Any, device: torch.device) -> Any:
    """Wrap a policy on another device: roots are moved to it, and its outputs back."""
    # a callable without parameters has no device of its own
    inner = policy if isinstance(policy, nn.Module) else getattr(policy, "policy", None)
    here = device_of(inner)
    if here is None or here == device:
        return policy

    def act(root: TensorDictBase) -> TensorDictBase:
        given = root.to(here)
        acted = policy(given)
        back: TensorDictBase = (given if acted is None else acted).to(device)
        return back.clear_device_()

    return act


def copy_to_out(out: TensorDictBase, batch: TensorDictBase) -> TensorDictBase:
    """Copy a batch `[*B, T]` into the first T steps of `out`; returns a view of these."""
    # everything is checked before the first write: a refused batch leaves `out` as it was
    room, num_steps = out.batch_size, batch.batch_size[-1]
    if room[:-1] != batch.batch_size[:-1] or not room or room[-1] < num_steps:
        sizes = (*batch.batch_size[:-1], num_steps)
        msg = f"out must have batch size {sizes}, or more steps: got {tuple(room)}."
        raise ValueError(msg)
    first = out[..., :num_steps]
    there, made = dict(keys.leaves(first)), dict(keys.leaves(batch))
    if there.keys() != made.keys():
        names = sorted(str(keys.as_key(key)) for key in there.keys() ^ made.keys())
        msg = f"out and the batch differ in {names}: make out as the batch is, with zeros_like."
        raise KeyError(msg)
    for key, value in made.items():
        if there[key].dtype != value.dtype:
            msg = f"out {keys.as_key(key)!r}: expected {value.dtype}, got {there[key].dtype}."
            raise TypeError(msg)
        if there[key].shape != value.shape:
            found, expected = tuple(there[key].shape), tuple(value.shape)
            msg = f"out {keys.as_key(key)!r}: expected shape {expected}, got {found}."
            raise ValueError(msg)
    for key, value in made.items():
        there[key].copy_(value)
    first.names = batch.names
    return first
