"""The default binding of an environment to the columns of a batch, and bindings of one column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.arrays import RowArrays
from rl_envs.env.interface import Binding, Environment
from rl_envs.env.spec_leaves import SpecLeaves
from rl_layout import keys
from rl_tensordict import build, build_flat, find, nest
from rl_tensordict.types import Array, KeyPath

Binds = Callable[[RowArrays, RowArrays], Binding]


class RowBinding:
    """Binds any environment: its steps and resets are given tensordicts of copies."""

    def __init__(self, env: Environment, root: RowArrays, after: RowArrays) -> None:
        self.env, self.root, self.after = env, root, after
        self._before: tuple[Any, ...] = (slice(None),) * len(env.batch_size)
        self._inputs = {key: root[key] for key, _ in env.layout.inputs if key in root}
        self._shown = {key: root[key] for key, _ in env.layout.shown if key in root}

    def start(self, mask: Array | None = None) -> None:
        """Reset the rows of a mask, bool `[*B, 1]`, or all, and write them to column 0."""
        self.reset(0, mask)

    def reset(self, t: int, mask: Array | None) -> None:
        """Reset the rows of a mask, or all, and write column t of the root."""
        rows = self._column(self._shown, t)
        if mask is None:
            write(rows, self.env.reset())
            return
        root = as_tensordict(rows, self.env.batch_size)
        root.set("_reset", torch.from_numpy(mask.copy()))
        write(rows, self.env.reset(root))

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        step = self.env.step(as_tensordict(self._column(self._inputs, t), self.env.batch_size))
        write(self._column(self.after, t), step.get(keys.NEXT))
        done = self.after.get((keys.DONE,))
        return done is not None and bool(done[(*self._before, t)].any())

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows that are done in column t are reset."""
        rows = self._column(self._shown, t + 1)
        for key, row in rows.items():
            row[...] = self.after[key][(*self._before, t)]
        done = self.after["done",][(*self._before, t)]
        if done.any():
            self.reset(t + 1, done)

    def set_policy_next_keys(self, names: set[KeyPath]) -> None:
        """Nothing changes: what is under `"next"` is no input of the environment."""

    def _column(self, columns: Mapping[KeyPath, Array], t: int) -> dict[Any, Array]:
        # the ellipsis keeps a row without dimensions an array that can be written to
        return {key: column[(*self._before, t, ...)] for key, column in columns.items()}


class OneColumn:
    """An environment bound to a batch of one step, through which its steps by hand go."""

    # everything that can be is prepared once: a step only copies rows

    def __init__(
        self, env: Environment, bind: Binds | None = None, *, actions_only: bool = False
    ) -> None:
        self._env, layout = env, env.layout
        root = blank_rows(env, [*layout.action, *layout.shown, *layout.state])
        after = blank_rows(env, layout.after)
        self.binding = bind_rows(env, root, after, bind)
        reads_actions = actions_only or env.reads_actions_only
        inputs = layout.action if reads_actions else layout.inputs
        self._inputs = [(key, root[key]) for key, _ in inputs]
        self._dtypes = {key: spec.dtype for key, spec in inputs}
        self._shown = [(key, root[key]) for key, _ in layout.shown]
        self._results, self._after = [(key, after[key]) for key, _ in layout.after], after
        self._flat = all(len(key) == 1 for key, _ in self._results)

    def step(self, root: TensorDictBase) -> TensorDictBase:
        """Step from a root `[*B]`; returns what is under `"next"`."""
        for key, row in self._inputs:
            row[...] = find(root, key).detach().cpu().numpy()
        self.binding.step(0)
        if self._env.check_values:
            self._env.layout.check_arrays(self._after)
        return self._copied(self._results)

    def takes(self, root: TensorDictBase) -> bool:
        """Whether a root holds what a step reads, in the form of the rows, and no results."""
        for key, row in self._inputs:
            value = find(root, key)
            if not isinstance(value, Tensor) or value.requires_grad or not value.is_cpu:
                return False
            if value.shape != row.shape or value.dtype != self._dtypes[key]:
                return False
        return find(root, (keys.NEXT,)) is None

    def reset(self, mask: Array | None = None) -> TensorDictBase:
        """Reset the rows of a mask, bool `[*B, 1]`, or all; other rows mean nothing."""
        self.binding.start(mask)
        return self._copied(self._shown)

    def _copied(self, rows: Sequence[tuple[KeyPath, Array]]) -> TensorDictBase:
        leaves = {key: torch.from_numpy(row.copy()) for key, row in rows}
        if self._env.device.type != "cpu":
            leaves = {key: leaf.to(self._env.device) for key, leaf in leaves.items()}
        if self._flat:
            entries: Any = {name: leaf for (name,), leaf in leaves.items()}
            return build_flat(entries, self._env.batch_size)
        return grouped(nest(leaves), self._env.batch_size, self._env.layout.group_sizes)


def grouped(
    tree: Mapping[str, Any],
    batch_size: torch.Size,
    group_sizes: Mapping[KeyPath, torch.Size],
    prefix: KeyPath = (),
) -> TensorDictBase:
    """Build nested leaves; each group has a batch size of its own."""
    entries = {
        name: grouped(entry, group_sizes[*prefix, name], group_sizes, (*prefix, name))
        if isinstance(entry, dict)
        else entry
        for name, entry in tree.items()
    }
    return build(entries, batch_size)


def blank_rows(env: Environment, leaves: SpecLeaves) -> dict[KeyPath, Array]:
    """Make a row of zeros `[*B, ...]` for each leaf."""
    return {
        key: torch.zeros(spec.shape, dtype=spec.dtype, device="cpu").numpy() for key, spec in leaves
    }


def bind_rows(
    env: Environment, root: RowArrays, after: RowArrays, bind: Binds | None = None
) -> Binding:
    """Bind rows `[*B, ...]` as columns of one step; results without a row are dropped."""
    time = len(env.batch_size)
    results = blank_rows(env, env.layout.after) | dict(after)
    columns = (
        {key: np.expand_dims(row, time) for key, row in rows.items()} for rows in (root, results)
    )
    return (bind or env.bind_step)(*columns)


def as_tensordict(rows: RowArrays, batch_size: torch.Size) -> TensorDictBase:
    """Copy rows into a tensordict: environments may keep their inputs."""
    return build(
        nest({key: torch.from_numpy(np.array(row)) for key, row in rows.items()}), batch_size
    )


def write(rows: RowArrays, tensordict: TensorDictBase) -> None:
    """Write the entries of a tensordict into rows, in place."""
    for key, row in rows.items():
        row[...] = keys.require(tensordict, keys.as_key(key)).detach().cpu().numpy()
