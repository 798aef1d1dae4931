"""Rollouts that write their batch in place: the fast twin of `rl_envs.rollout`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs import guards
from rl_envs.arrays import Array
from rl_envs.columns import Columns, Key
from rl_envs.policy_plan import policy_plan
from rl_envs.rollout import Request
from rl_layout import keys
from rl_layout.tensordict_fast import build, nest

if TYPE_CHECKING:
    from rl_envs.binding import Binding
    from rl_envs.env import EnvBase

FIRST_STEPS = 256  # room for steps where a rollout may end at any of them


def can_play(env: EnvBase, request: Request) -> bool:
    """Tell whether a rollout can write its batch in place.

    Args:
        env: any environment.
        request: what to play.

    Returns:
        False where it must go through tensordicts.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> can_play(CountingEnv(), Request(5))
        False
    """
    return env.native_rows and request.callback is None and not request.break_when_all_done


def play(env: EnvBase, request: Request) -> TensorDictBase:
    """Reset an environment and play steps in place.

    Args:
        env: an environment that writes rows itself.
        request: what to play.

    Returns:
        The steps `[*B, T]`, as `rl_envs.rollout.play` returns them.

    Raises:
        KeyError: the policy reads a key that the environment lacks, or writes no action.
        TypeError: an action has another dtype than its spec.
        ValueError: an action has another shape than its spec, or a value lies outside its spec.

    Example:
        >>> from rl_envs import GymEnv
        >>> play(GymEnv("CartPole-v1"), Request(3)).names
        ['time']
    """
    guards.check_open(env)
    rollout = RowRollout(env, request)
    batch = rollout.play()
    if env.check_values:
        _check(env, batch)
    if request.set_truncated:
        _truncate_last(batch, len(env.batch_size))
    return batch


class RowRollout:
    """One rollout under way.

    Args:
        env: an environment that writes rows itself.
        request: what to play.

    Example:
        >>> from rl_envs import GymEnv
        >>> RowRollout(GymEnv("CartPole-v1"), Request(3)).play().shape
        torch.Size([3])
    """

    def __init__(self, env: EnvBase, request: Request) -> None:
        self.env, self.request = env, request
        room = request.max_steps
        if request.break_when_any_done:
            room = min(room, FIRST_STEPS)
        self.columns = Columns(env.batch_size, room, time_first=env.resets_by_stepping)
        root = (*env._observation_leaves, *env._done_leaves, *env._action_leaves)
        self.columns.add_leaves(list(root))
        self.columns.add_leaves([((keys.NEXT, *key), leaf) for key, leaf in env._after_leaves])
        self.plan = None if request.policy is None else policy_plan(request.policy)
        self._given: set[Key] = set()
        self._missing: Array | None = None  # steps that each row lacks, where they differ
        if env.resets_by_stepping:
            self.columns.add(keys.MASK, torch.Size(), torch.bool)
            self._missing = np.full(env.batch_size, request.max_steps)
        shown = (*env._observation_leaves, *env._done_leaves)
        self._read = [key for key, _ in shown]  # what a policy of unknown keys is given
        if self.plan is not None and self.plan.in_keys is not None:
            self._read = [key for key in self.plan.in_keys if key in self.columns.tensors]

    def play(self) -> TensorDictBase:
        """Play to the end.

        Returns:
            The batch `[*B, T]`.
        """
        binding = self._bound()
        binding.start()
        self._draw(0)
        for t in itertools.count():
            if self.plan is not None:
                self._act(t)
                if t == 0:
                    binding.receive(self._given)
            over = binding.step(t)
            if self._is_full(t) or (over and self.request.break_when_any_done):
                break
            if t + 1 == self.columns.num_steps:
                self.columns.grow(self._more_room(t + 1))
                binding = self._bound()
                binding.receive(self._given)
                self._draw(t + 1)
            binding.advance(t)
        batch = self.columns.batch(t + 1)
        return batch if self._missing is None else real_steps(batch, self.request.max_steps)

    def _more_room(self, num_steps: int) -> int:
        if self._missing is None:
            return min(2 * num_steps, self.request.max_steps)
        return num_steps + num_steps // 4 + 8  # rows that were only reset are few

    def _is_full(self, t: int) -> bool:
        """Tell whether every row has all its steps."""
        if self._missing is None:
            return t + 1 == self.request.max_steps
        self._missing -= self.columns.arrays[keys.MASK][:, t]
        return t + 1 >= self.request.max_steps and bool((self._missing <= 0).all())

    def _bound(self) -> Binding:
        arrays = self.columns.arrays
        root = {key: array for key, array in arrays.items() if key[0] != keys.NEXT}
        after = {key[1:]: array for key, array in arrays.items() if key[0] == keys.NEXT}
        return self.env.bind(root, after)

    def _draw(self, start: int) -> None:
        """Draw the random actions of the room that is left, all at once."""
        if self.plan is not None:
            return
        time, left = len(self.env.batch_size), self.columns.num_steps - start
        for key, spec in self.env._action_leaves:
            drawn = spec.rand((left,)).movedim(0, time)
            self.columns.tensors[key].narrow(time, start, left).copy_(drawn)

    def _act(self, t: int) -> None:
        assert self.plan is not None
        values = self.columns.at(t, self._read)
        made = self.plan(values, self.env.batch_size)
        if t == 0:
            self._receive(made)
        write = self.columns.write
        for key, value in made.items():
            write(t, key, value)

    def _receive(self, made: dict[Key, Tensor]) -> None:
        """Check what the policy writes, once, and make columns for it."""
        guards.check_action(self.env, build(nest(made), self.env.batch_size))
        rows = len(self.env.batch_size)
        self._given = {key[1:] for key in made if key[0] == keys.NEXT}
        for key, value in made.items():
            if value.shape[:rows] != self.env.batch_size:
                msg = (
                    f"the policy's {keys.as_key(key)!r} must begin with the batch size "
                    f"{tuple(self.env.batch_size)}: got {tuple(value.shape)}."
                )
                raise ValueError(msg)
            if key not in self.columns.tensors:
                self.columns.add(key, value.shape[rows:], value.dtype)
            elif not self.columns.fits(key, value):
                msg = (
                    f"the policy's {keys.as_key(key)!r} overwrites an entry of the environment "
                    f"with another shape or dtype: got {tuple(value.shape)}, {value.dtype}."
                )
                raise ValueError(msg)


def real_steps(batch: TensorDictBase, num_steps: int) -> TensorDictBase:
    """Close the gaps that a mask leaves in each row.

    Args:
        batch: `[B, S]` with `("collector", "mask")`, which may be False.
        num_steps: T, how many real steps to keep. Every row has as many, or none has a gap.

    Returns:
        The first real steps of each row, `[B, T]`, without the mask.

    Example:
        >>> from tensordict import TensorDict
        >>> mask = torch.tensor([[True, False, True], [True, True, True]])
        >>> batch = TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3])
        >>> real_steps(batch.set(("collector", "mask"), mask), 2)["a"].tolist()
        [[0, 2], [3, 4]]
    """
    mask = batch.get(keys.MASK)
    num_steps = min(num_steps, int(mask.sum(-1).min()))
    order = torch.argsort(~mask, dim=-1, stable=True)[:, :num_steps]
    rows = torch.arange(len(mask)).unsqueeze(-1)
    kept = {k: leaf[rows, order] for k, leaf in keys.leaves(batch) if k != keys.MASK}
    return build(nest(kept), torch.Size((len(mask), num_steps)), [None, keys.TIME])


def _check(env: EnvBase, batch: TensorDictBase) -> None:
    """Refuse values outside their specs, all steps of a leaf at once."""
    rows = len(env.batch_size)
    for key, spec in env._after_leaves:
        value: Tensor = batch.get((keys.NEXT, *key))
        guards.check_value(key, spec, value.movedim(rows, 0), "step")
    for key, spec in env._observation_leaves:
        guards.check_value(key, spec, batch.get(key).movedim(rows, 0), "reset")


def _truncate_last(batch: TensorDictBase, time: int) -> None:
    """Mark the last step as truncated, in place: the columns are nobody else's yet."""
    flags = {name: batch.get((keys.NEXT, name)).select(time, -1) for name in keys.DONE_KEYS}
    flags[keys.TRUNCATED] |= ~flags[keys.TERMINATED]
    flags[keys.DONE].fill_(True)
