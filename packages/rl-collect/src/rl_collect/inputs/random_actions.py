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
        masks = [keys.as_tuple(key) for key in env.mask_keys]
        self._read = list(dict.fromkeys([*(plan.in_keys or []), *masks]))
        self._written = list(dict.fromkeys([*(plan.out_keys or []), *self._actions]))
        self.in_keys: list[Any] = self._read
        self.out_keys: list[Any] = self._written

    def takes_tensors(self) -> bool:
        """Tell whether the policy does."""
        return self._plan.is_flat

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Act on tensors `[*B, ...]`, one for each of `in_keys`."""
        values = dict(zip(self._read, tensors, strict=True))
        made = self._act(values, self._env.batch_size)
        return tuple([made[key] for key in self._written])

    def forward(self, root: TensorDictBase) -> TensorDictBase:
        """Act on a step's root, which is written to."""
        for key, value in self._act(dict(keys.leaves(root)), root.batch_size).items():
            root.set(key, value)
        return root

    def _act(
        self, values: Mapping[KeyPath, Tensor], batch_size: torch.Size
    ) -> dict[KeyPath, Tensor]:
        self._plan.refresh()
        made = self._plan(values, batch_size)
        drawn = self._env.rand_action(build(nest(values), batch_size))
        found = {
            key: torch.full_like(value, torch.nan) if "log_prob" in key[-1] else value
            for key, value in made.items()
        }
        return found | {key: drawn[key] for key in self._actions}
