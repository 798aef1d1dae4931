"""The rows through which a process and its workers hand over steps: one row an environment."""

from __future__ import annotations

from typing import Any

import torch

from rl_envs.env.interface import Environment
from rl_envs.env.spec_leaves import SpecLeaves, has_fixed_form
from rl_layout import keys
from rl_slabs import RowSchema, Slab
from rl_tensordict.types import Array, KeyPath

RESET = "_reset"
_ROOT = "root"


class SharedStepBuffers:
    """The shared memory through which steps pass: numpy views of one row per environment."""

    # row i:  mask | root: action, observation, done flags, state | next: observation, reward, ...
    # The caller writes root (and mask) and signals; the worker of an environment then owns its row
    # until it has replied. A row has one writer at any time, so no lock is needed.

    def __init__(self, slab: Slab, rows: slice | None = None) -> None:
        self.slab = slab
        self.root: dict[KeyPath, Array] = {}  # [rows, *B, ...], inputs of a step
        self.after: dict[KeyPath, Array] = {}  # [rows, *B, ...], its results, keys without "next"
        for field in slab.schema.fields:
            column = slab.columns()[field.key][rows or slice(None)]
            part = {_ROOT: self.root, keys.NEXT: self.after}.get(field.path[0])
            if part is None:
                self.mask = column  # bool [rows, *B, 1], the rows to reset
            else:
                part[field.path[1:]] = column


def schema_of(env: Environment) -> RowSchema | None:
    """The schema of one environment's row; None if its entries do not fit into shared rows."""
    # shared rows need a fixed shape, a dtype that numpy has, and the CPU; specs are [N, *B, ...],
    # a row is [*B, ...]
    shown = env.layout.shown
    root: SpecLeaves = [*shown, *env.layout.action, *env.layout.state]
    parts = [((_ROOT, *key), spec) for key, spec in root]
    parts += [((keys.NEXT, *key), spec) for key, spec in env.layout.after]
    if env.device.type != "cpu" or not all(_fits(spec) for _, spec in parts):
        return None
    leaves: dict[Any, Any] = {key: (spec.dtype, spec.shape[1:]) for key, spec in parts}
    if env.marks_missing:
        leaves[_ROOT, *keys.NEXT_MISSING] = (torch.bool, env.batch_size[1:])
    return RowSchema(leaves | {RESET: (torch.bool, (*env.batch_size[1:], 1))})


def _fits(spec: Any) -> bool:
    if not has_fixed_form(spec):
        return False
    try:
        torch.empty(0, dtype=spec.dtype, device="cpu").numpy()
    except TypeError:
        return False
    return True
