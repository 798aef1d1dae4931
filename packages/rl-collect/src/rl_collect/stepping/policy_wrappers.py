"""Plans around a plan: actions that are replaced, calls that a profiler sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs import EnvBase, PolicyPlan
from rl_layout import keys
from rl_tensordict import build, nest

Key = tuple[str, ...]


class PlanAround(PolicyPlan):
    """Another plan, which reads the same and can be changed by subclasses."""

    def __init__(self, plan: PolicyPlan) -> None:
        super().__init__(plan.policy)
        self.plan, self.policy = plan, self._act

    @property
    def calls(self) -> None:
        """Nothing: a step calls this plan."""
        return None

    @property
    def in_keys(self) -> list[Key] | None:
        """What the plan reads and does not make itself; None where that cannot be known."""
        return self.plan.in_keys

    def __call__(self, values: Mapping[Key, Tensor], batch_size: torch.Size) -> dict[Key, Any]:
        """Run the policy on a step's root, as the plan does."""
        return self.plan(values, batch_size)

    def _act(self, root: TensorDictBase) -> TensorDictBase:
        """Act on a tensordict, which is changed."""
        for key, value in self(dict(keys.leaves(root)), root.batch_size).items():
            root.set(keys.as_key(key), value)
        return root


class RandomActions(PlanAround):
    """A policy whose actions are replaced; what else it writes stays, its states among it."""

    # Log-probabilities are NaN, because they would be of another action.

    def __init__(self, plan: PolicyPlan, env: EnvBase) -> None:
        super().__init__(plan)
        self._env = env
        self._actions = [keys.as_tuple(key) for key in env.full_action_spec.keys(True, True)]

    @property
    def in_keys(self) -> list[Key] | None:
        """What the plan reads, and what says which actions are allowed."""
        read = self.plan.in_keys
        return None if read is None else [*read, *map(keys.as_tuple, self._env.mask_keys)]

    def __call__(self, values: Mapping[Key, Tensor], batch_size: torch.Size) -> dict[Key, Any]:
        """Run the policy, and take random actions instead of its own."""
        made = self.plan(values, batch_size)
        drawn = self._env.rand_action(build(nest(values), torch.Size(batch_size)))
        found = {
            key: torch.full_like(value, torch.nan) if "log_prob" in key[-1] else value
            for key, value in made.items()
        }
        return found | {key: drawn[key] for key in self._actions}


class Ranged(PlanAround):
    """A policy whose calls are a named range of torch's profiler."""

    def __call__(self, values: Mapping[Key, Tensor], batch_size: torch.Size) -> dict[Key, Any]:
        """Run the policy."""
        with torch.profiler.record_function("rl_collect.policy"):
            return self.plan(values, batch_size)
