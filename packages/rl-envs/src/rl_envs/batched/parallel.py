"""Environments in processes of their own, stepped at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.batched.remote_env import RemoteEnv, attributes_of_workers, updated
from rl_envs.batched.serial import (
    EnvMakers,
    environment_makers,
    one_per_worker,
    saved_states,
    shares_of,
    split_root,
    stack_rows,
)
from rl_envs.batched.shared_step_buffers import SharedStepBuffers, schema_of
from rl_envs.batched.worker_env import EnvTraits, EnvWorker, numbered
from rl_envs.env import checks
from rl_envs.env.arrays import RowArrays
from rl_envs.env.env import EnvBase
from rl_envs.env.forwarding import is_own
from rl_envs.env.interface import Binding
from rl_envs.env.spec_leaves import has_form, leaves_of
from rl_envs.gym.final_observations import MissingObservations
from rl_layout import keys
from rl_slabs import Slab
from rl_specs import stack_specs
from rl_tensordict import draw_seed
from rl_tensordict.types import Array
from rl_workers import StartMethod, WorkerPool


class ParallelEnv(EnvBase):
    """A batch of environments, `[num_workers, *B]`, that are stepped at the same time.

    Results equal those of `SerialEnv`, bit for bit: each process runs a serial environment over its
    share. Steps pass through shared memory, one row for each environment, and a message only
    signals them. Tensordicts are sent instead, which is slower, where rows cannot hold all that an
    environment may read: a size of -1, entries that are no tensors, another device; and, for
    environments that do not write rows themselves (`native_rows`), at resets and at steps from a
    tensordict with entries that have no spec, or differ from it in shape or dtype.

    `env[i]` reads attributes and calls methods of environment i in its process. Another attribute
    than those here comes as a list of one for each environment; a method as a function that calls
    each and returns a list.

    Close it, or use it in a `with` block. An environment that fails raises its own exception here,
    with its traceback as the cause; a process that is gone raises `WorkerDied`, one that is late
    `WorkerTimeout`, and `restart` replaces both. No process outlives this one. See
    `rl_workers.context_of` for the ways to start them.

    Args:
        num_workers: how many environments.
        create_env_fn: makes one of them; or one function each. A lambda will do.
        create_env_kwargs: arguments for every call; or one dictionary each.
        num_processes: how many processes share them; one for each environment where None.
        mp_start_method: "fork", "spawn" or "forkserver", the last where None.
        timeout_s: longest time to wait for a step or a reset.
        num_threads: how many threads torch may use in each process.

    Attributes:
        num_workers: how many environments there are.
        pool: the processes.

    Raises:
        ValueError: the number of functions is another one, or the environments differ in specs.
        WorkerDied: a process ended while it started.
        Exception: what making an environment raised.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> with ParallelEnv(2, lambda: CountingEnv(3), mp_start_method="fork") as env:
        ...     env.rollout(4, break_when_any_done=False)["next", "done"].sum(1).flatten().tolist()
        [1, 1]
    """

    def __init__(  # noqa: PLR0913 - four of them are the field's
        self,
        num_workers: int,
        create_env_fn: EnvMakers,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        num_processes: int | None = None,
        mp_start_method: StartMethod | None = None,
        timeout_s: float = 60.0,
        num_threads: int | None = 1,
    ) -> None:
        self.num_workers = num_workers
        self._shares = shares_of(num_workers, num_processes)
        self._buffers: SharedStepBuffers | None = None
        makers = environment_makers(num_workers, create_env_fn)
        kwargs = one_per_worker(num_workers, create_env_kwargs or {}, "create_env_kwargs")
        # read when a process starts: update_kwargs replaces them
        self._kwargs = [list(kwargs[share]) for share in self._shares]
        self._drawn = [draw_seed()]  # processes seed their generators with it
        parts = zip(self._shares, self._kwargs, strict=True)
        self.pool = WorkerPool(
            [partial(EnvWorker, makers[at], given, self._drawn, at.start) for at, given in parts],
            signals=EnvWorker.signals,
            start_method=mp_start_method,
            preload=["rl_envs"],
            timeout_s=timeout_s,
            name="env worker",
            num_threads=num_threads,
        )
        try:
            self._adopt_specs(list(chain(*self.pool.call_all("traits"))))
            self._attach_rows()
        except BaseException:
            self.pool.close()
            raise

    def _adopt_specs(self, traits: list[EnvTraits]) -> None:
        """Take over specs, device and batch size of the environments, stacked along dimension 0."""
        first = self._traits = traits[0]
        first.check_alike(traits)
        super().__init__(device=first.device, batch_size=(len(traits), *first.batch_size))
        self._shown_by_one = leaves_of(first.specs["observation_spec"], first.specs["done_spec"])
        for name, spec in first.specs.items():
            setattr(self, name, stack_specs([spec.clone() for _ in traits], 0))
        self.check_values = all(one.check_values for one in traits)
        self.flags_agree = all(one.flags_agree for one in traits)
        self.marks_missing = any(one.marks_missing for one in traits)
        self.missing = MissingObservations(f"A vector in {type(self).__name__}")
        self.reads_actions_only = all(one.reads_actions_only for one in traits)

    def _attach_rows(self) -> None:
        self._own_rows = self._has_steps_of(ParallelEnv)
        schema = schema_of(self)
        if schema is None:
            return
        self._buffers = SharedStepBuffers(Slab.shared(schema, self.num_workers))
        for process in range(len(self.pool)):
            self._attach(process)
        self._shown = {key: self._buffers.root[key] for key, _ in self.layout.shown}
        inputs = self.layout.action if self.reads_actions_only else self.layout.inputs
        self._inputs = {key: self._buffers.root[key] for key, _ in inputs}
        self._input_specs = dict(inputs)
        self._declared = set(self._buffers.root)
        # marks of missing observations have a place in rows alone
        is_native = self.reads_actions_only or self.marks_missing
        self.native_rows = is_native and self.done_groups == [()] and self._own_rows

    def _attach(self, process: int) -> None:
        if self._buffers is not None:
            self.pool.call(process, "attach", self._buffers.slab, self._shares[process].start)

    def _move_on(self) -> None:
        """Leave the episodes under way; new processes draw numbers that no older one drew."""
        self.is_started = False
        self._num_moves += 1
        self._drawn[0] = draw_seed()

    def restart(self, *, timeout_s: float | None = None) -> list[int]:
        """Replace processes that are gone or do not answer.

        The pending step is lost in all rows: reset the environments before the next one. A new
        process makes its environments again, without a seed; the others keep their state and their
        generators.

        Args:
            timeout_s: longest time to wait for processes that are still busy; that of the
                constructor where None.

        Returns:
            The numbers of the new environments.

        Raises:
            RuntimeError: the environment is closed.
            ValueError: a new environment differs from the others in its specs.
            WorkerDied: a new process ended while it started.
            Exception: what making an environment raised.

        Example:
            >>> import os, signal
            >>> from rl_envs.testing import CountingEnv
            >>> with ParallelEnv(3, CountingEnv, mp_start_method="fork") as env:
            ...     os.kill(env.pool.pids[1], signal.SIGKILL)
            ...     env.restart(), env.reset()["observation"].flatten().tolist()
            ([1], [0.0, 0.0, 0.0])
        """
        checks.check_open(self)
        self._move_on()
        processes = self.pool.revive(timeout_s=timeout_s)
        self._adopt(processes)
        rows = range(self.num_workers)
        return [row for process in processes for row in rows[self._shares[process]]]

    def _adopt(self, processes: Iterable[int]) -> None:
        """Check the environments of new processes, and attach the shared rows there."""
        for process in processes:
            traits = self.pool.call(process, "traits")
            self._traits.check_alike(traits, self._shares[process].start)
            self._attach(process)

    def update_kwargs(self, kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Start the processes again, to make the environments with some arguments replaced.

        Args:
            kwargs: arguments for all; or one dictionary each. The others stay as they are.

        Raises:
            RuntimeError: the environment is closed.
            ValueError: they are as many as no environments, or a new one has other specs.
            Exception: what making an environment raised. After an error the old arguments count,
                and `restart` makes what is missing.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> with ParallelEnv(2, CountingEnv, mp_start_method="fork") as env:
            ...     env.update_kwargs([{"max_steps": 1}, {"max_steps": 2}])
            ...     env.endings
            [[(1, 'terminated')], [(2, 'terminated')]]
        """
        checks.check_open(self)
        given = one_per_worker(self.num_workers, kwargs, "kwargs")
        before = [list(held) for held in self._kwargs]
        self._move_on()
        try:
            for process, share in enumerate(self._shares):
                self._kwargs[process][:] = updated(self._kwargs[process], given[share])
                self.pool.restart(process)
            self._adopt(range(len(self.pool)))
        except BaseException:
            for held, old in zip(self._kwargs, before, strict=True):
                held[:] = old
            raise

    def __getitem__(self, index: int | slice) -> Any:
        rows = range(self.num_workers)
        places = [(p, n) for p, share in enumerate(self._shares) for n in range(len(rows[share]))]
        if isinstance(index, slice):
            return [RemoteEnv(self.pool, *place) for place in places[index]]
        return RemoteEnv(self.pool, *places[index])

    def __getattr__(self, name: str) -> Any:
        if is_own(self, name):
            return object.__getattribute__(self, name)
        return attributes_of_workers(type(self).__name__, self.pool, name)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments, each from the one before, or all alike."""
        super().set_seed(seed, static_seed)
        for process in range(len(self.pool)):
            seed = self.pool.call(process, "set_seed", seed, static_seed)
        return seed

    # rows

    def render(self) -> Tensor:
        """Draw every environment: frames uint8 `[num_workers, *B, H, W, 3]`."""
        checks.check_open(self)
        return torch.cat(self.pool.call_all("render"))

    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns `[num_workers, *B, T, ...]` of a batch."""
        by_rows = self.native_rows and not self.has_steps_set()
        return ParallelBinding(self, root, after) if by_rows else super().bind(root, after)

    def bind_step(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind columns of one step."""
        if self._buffers is None or not self._own_rows or self.has_steps_set():
            return super().bind_step(root, after)
        return ParallelBinding(self, root, after)

    # tensordicts

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start all trajectories, or the rows of a mask; see `EnvBase.reset`."""
        is_other = self.layout.has_fixed_forms and (not self._own_rows or self.has_steps_set())
        if is_other or (self.native_rows and not kwargs):
            return super().reset(tensordict, **kwargs)
        checks.check_open(self)
        checks.check_batch(self, tensordict)
        roots = [None] * self.num_workers if tensordict is None else tensordict.unbind(0)
        root = self._each("reset_each", roots, kwargs)
        self.is_started = True
        return root

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take one step; see `EnvBase.step`."""
        if self._buffers is not None:
            return super().step(tensordict)
        checks.check_step(self, tensordict)
        root = self.layout.fit_actions(tensordict, checks_values=self.check_values)
        return root.copy().set(keys.NEXT, self._step(root))

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        roots: Sequence[Any] = [None] * self.num_workers
        if tensordict is not None:
            roots = split_root(tensordict, self._shown_by_one)
        names = [key for key, _ in self._shown_by_one]
        return self._each("reset_each", roots, kwargs).select(*names)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._each("step_each", tensordict.unbind(0))

    def step_some(self, root: TensorDictBase, going: Sequence[bool]) -> list[TensorDictBase | None]:
        """Step some environments, each in a process of its own, while the others keep their state.

        Args:
            root: `[num_workers, *B]`, with the actions.
            going: which environments are stepped.

        Returns:
            What is under `"next"` in each of them; None for the others.
        """
        self._num_moves += 1
        for process, (row, goes) in enumerate(zip(root.unbind(0), going, strict=True)):
            if goes:
                self.pool.begin(process, "step_each", [row.clone()])
        return [
            self.pool.receive(process)[0] if goes else None for process, goes in enumerate(going)
        ]

    @property
    def _resets_by_rows(self) -> bool:
        # buffers hold no arguments
        return self._buffers is not None and self._own_rows and not self.has_steps_set()

    def _each(self, name: str, roots: Sequence[Any], *arguments: Any) -> TensorDictBase:
        """Call a method of every worker with the roots of its environments, as messages."""
        self._num_moves += 1
        replies = self.pool.call_all(name, [(roots[share], *arguments) for share in self._shares])
        # a size of -1 differs from environment to environment: such a stack is a lazy one
        return stack_rows(list(chain(*replies)))

    def _steps_by_rows(self, root: TensorDictBase) -> bool:
        """Whether a step can go through the rows without losing what the environment may read."""
        if self._buffers is None or not self._own_rows or self.has_steps_set():
            return False
        if self.reads_actions_only:
            return True
        given = dict(keys.leaves(root))
        return given.keys() <= self._declared and all(
            key in given and has_form(spec, given[key]) for key, spec in self._input_specs.items()
        )

    # signals

    @property
    def _rows(self) -> SharedStepBuffers:
        assert self._buffers is not None
        return self._buffers

    def _restart(self, mask: Array | None) -> None:
        """Reset all rows, or those of a mask `[N, *B, 1]`, into the exchange."""
        self._num_moves += 1
        if mask is None:
            self.pool.signal_all("restart")
        else:
            self._rows.mask[...] = mask
            for process, share in enumerate(self._shares):
                if mask[share].any():
                    self.pool.signal(process, "reset")
        self.pool.receive_all()
        self.is_started = True

    def _signal_step(self) -> None:
        self._num_moves += 1
        self.pool.signal_all("step")
        self.pool.receive_all()

    # state and life

    def _set_seed(self, seed: int) -> None:
        """Nothing is random alongside the environments."""

    def _get_state(self) -> dict[str, Any]:
        return {"envs": list(chain(*self.pool.call_all("get_states")))}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        states = saved_states(state, self.num_workers)
        self.pool.call_all("set_states", numbered([states[share] for share in self._shares]))

    def _to(self, device: torch.device) -> None:
        msg = (
            f"this {type(self).__name__} lives on {self.device}, where its processes make it: let "
            f"create_env_fn make environments on {device}, or move what it returns by "
            f"TransformedEnv(env, DeviceCastTransform({str(device)!r}, {str(self.device)!r}))."
        )
        raise NotImplementedError(msg)

    def _close(self) -> None:
        try:
            self.pool.close()
        finally:
            if self._buffers is not None:
                self._buffers.slab.close()


class ParallelBinding:
    """A `ParallelEnv` bound to the columns of a batch."""

    def __init__(self, env: ParallelEnv, root: RowArrays, after: RowArrays) -> None:
        self.env = env
        time = len(env.batch_size)
        # time first, so that one index finds a column
        root = {key: np.moveaxis(column, time, 0) for key, column in root.items()}
        after = {key: np.moveaxis(column, time, 0) for key, column in after.items()}
        found = env._rows.after
        self._over = found.get(("done",), np.zeros(1, bool))
        # columns, each with its row of the exchange
        self._inputs = [(root[key], row) for key, row in env._inputs.items() if key in root]
        self._shown = [(root[key], row) for key, row in env._shown.items() if key in root]
        self._next = [(after[key], row) for key, row in found.items() if key in after]
        # entries of the next root come from the columns of `after` if it has them: a
        # transform around the environments may have changed them there, and ended more rows
        self._carried = [
            (root[key], after.get(key), found[key]) for key in env._shown if key in root
        ]
        self._done = after.get(("done",))
        self._lacking = env._rows.root.get(keys.NEXT_MISSING)
        self._missing = root.get(keys.NEXT_MISSING)
        seen = [key for key in env._traits.observed if key in root and key in after]
        self._seen = [(root[key], after[key]) for key in seen]

    def start(self, mask: Array | None = None) -> None:
        """Reset the environments of a mask `[N, *B, 1]`, or all, and write column 0 of the root."""
        if mask is not None and not self.env.reads_actions_only:  # what a reset may read
            for column, row in self._shown:
                row[...] = column[0]
        self._restart(0, mask)

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        for column, row in self._inputs:
            row[...] = column[t]
        self.env._signal_step()
        for column, row in self._next:
            column[t] = row
        if self._lacking is not None:
            self._mark(t, self._lacking)
        return bool(self._over.any())

    def _mark(self, t: int, lacking: Array) -> None:
        """Mark rows without their last observation `[N, *B]`, which repeat the one before."""
        if self._missing is not None:
            self._missing[t] = lacking
        if not lacking.any():
            return
        for before, column in self._seen:  # processes are sent no observations to repeat
            column[t][lacking] = before[t][lacking]
        rows = np.flatnonzero(lacking.reshape(-1))
        self.env.missing.note(rows, are_marked=self._missing is not None)

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows that are done in column t are reset."""
        for column, before, row in self._carried:
            column[t + 1] = row if before is None else before[t]
        done = self._over if self._done is None else self._done[t]
        if done.any():
            self._restart(t + 1, done)

    def _restart(self, t: int, mask: Array | None) -> None:
        self.env._restart(mask)
        for column, row in self._shown:
            np.copyto(column[t], row, where=True if mask is None else _fitted(mask, row.ndim))

    def set_policy_next_keys(self, names: set[tuple[str, ...]]) -> None:
        """Nothing changes: what is under `"next"` is no input of the environments."""


def _fitted(mask: Array, ndim: int) -> Array:
    """Reshape a mask `[N, *B, 1]` so that it broadcasts against rows `[N, *B, ...]`."""
    rows = mask[..., 0]
    return rows.reshape(*rows.shape, *(1,) * (ndim - rows.ndim))
