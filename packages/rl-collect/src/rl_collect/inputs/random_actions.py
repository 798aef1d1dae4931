"""Random actions in the place of a policy's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs import EnvBase, PolicyPlan
from rl_layout import keys
from rl_tensordict import TensorStep, build, nest
from rl_tensordict.types import KeyPath


class RandomActions(TensorStep):
    """A policy whose actions are replaced; what else it writes stays, its states among it.

    Log-probabilities are NaN, because they would be of another action.
    """

    def __init__(self, plan: PolicyPlan, env: EnvBase) -> None:
        super().__init__()
        self._plan = plan
        self._env = env
        self.policy = plan.policy  # a part, if it is a module: its buffers are of this module too
        self._actions = [keys.as_tuple(key) for key in env.full_action_spec.keys(True, True)]
        self._masks = [keys.as_tuple(key) for key in env.mask_keys]

    @property
    def in_keys(self) -> list[Any]:
        """What the policy reads now, and masks."""
        return list(dict.fromkeys([*(self._plan.in_keys or []), *self._masks]))

    @property
    def out_keys(self) -> list[Any]:
        """What the policy writes now, and actions."""
        return list(dict.fromkeys([*(self._plan.out_keys or []), *self._actions]))

    def takes_tensors(self) -> bool:
        """Tell whether the policy does, its calls listed anew if it was changed."""
        self._plan.refresh()  # each batch asks this before it compares the keys
        return self._plan.is_flat

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Act on tensors `[*B, ...]`, one for each of `in_keys`."""
        values = dict(zip(self.in_keys, tensors, strict=True))
        made = self._act(values, self._env.batch_size)
        return tuple([made[key] for key in self.out_keys])

    def forward(self, root: TensorDictBase) -> TensorDictBase:
        """Act on a step's root, which is written to."""
        self._plan.refresh()
        for key, value in self._act(dict(keys.leaves(root)), root.batch_size).items():
            root.set(key, value)
        return root

    def _act(
        self, values: Mapping[KeyPath, Tensor], batch_size: torch.Size
    ) -> dict[KeyPath, Tensor]:
        made = self._plan(values, batch_size)
        drawn = self._env.rand_action(build(nest(values), batch_size))
        found = {
            key: torch.full_like(value, torch.nan) if "log_prob" in key[-1] else value
            for key, value in made.items()
        }
        return found | {key: drawn[key] for key in self._actions}
