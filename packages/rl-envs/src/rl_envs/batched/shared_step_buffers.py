"""The rows through which a process and its workers hand over steps: one row an environment."""

from __future__ import annotations

from typing import Any

import torch

from rl_envs.env.interface import Environment
from rl_envs.env.specs import SpecLeaves, has_fixed_form
from rl_envs.rollouts.arrays import Array
from rl_layout import keys
from rl_slabs import RowSchema, Slab

Key = tuple[str, ...]

RESET = "_reset"
_ROOT = "root"


class Exchange:
    """A shared slab of one row for each environment, as the numpy rows of its parts."""

    # The caller writes root (and mask) and signals; the worker of an environment then owns its row
    # until it has replied. No row is ever written by both at a time, so nothing locks.

    def __init__(self, slab: Slab, rows: slice | None = None) -> None:
        self.slab = slab
        self.root: dict[Key, Array] = {}
        self.after: dict[Key, Array] = {}
        for field in slab.schema.fields:
            column = slab.columns()[field.key][rows or slice(None)]
            part = {_ROOT: self.root, keys.NEXT: self.after}.get(field.path[0])
            if part is None:
                self.mask = column
            else:
                part[field.path[1:]] = column


def schema_of(env: Environment) -> RowSchema | None:
    """What one row of a batch of environments holds."""
    shown = [*env._observation_leaves, *env._done_leaves]
    root: SpecLeaves = [*shown, *env._action_leaves, *env._state_leaves]
    parts = [((_ROOT, *key), spec) for key, spec in root]
    parts += [((keys.NEXT, *key), spec) for key, spec in env._after_leaves]
    if env.device.type != "cpu" or not all(_fits(spec) for _, spec in parts):
        return None
    leaves: dict[Any, Any] = {key: (spec.dtype, spec.shape[1:]) for key, spec in parts}
    return RowSchema(leaves | {RESET: (torch.bool, (*env.batch_size[1:], 1))})


def _fits(spec: Any) -> bool:
    if not has_fixed_form(spec):
        return False
    try:
        torch.empty(0, dtype=spec.dtype).numpy()
    except TypeError:
        return False
    return True
