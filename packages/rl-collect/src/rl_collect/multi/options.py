"""The options of a collector over processes, and of the collectors in its workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import nn

from rl_collect.arguments import check_count, check_seconds, check_switches_of
from rl_collect.background_loop import LONGEST_S
from rl_collect.multi.batch_transport import Outbox
from rl_collect.options import CollectorOptions
from rl_envs import EnvBase
from rl_tensordict.arguments import as_integer, local_device
from rl_tensordict.torch_internals import is_compiled_in_place

WorkerMakers = Callable[..., Any] | Sequence[Callable[..., Any]]


def check_picklable(policy: Any, start_method: str | None) -> None:
    """Raise for a policy that was compiled in place, which pickling would break."""
    if start_method == "fork" or not isinstance(policy, nn.Module):
        return
    for name, part in policy.named_modules():
        if is_compiled_in_place(part):
            where = f"its part {name!r}" if name else "it"
            msg = (
                f"the policy, a {type(policy).__name__}, cannot be pickled on its way to workers: "
                f"{where} was compiled in place by {type(part).__name__}.compile(). Give "
                "torch.compile(policy), a policy_factory that compiles in the worker, or "
                'mp_start_method="fork".'
            )
            raise TypeError(msg)


def makers_of(create_env_fn: WorkerMakers, num_workers: int | None) -> list[Callable[..., Any]]:
    """List a function for each worker."""
    if num_workers is not None:
        num_workers = check_count(num_workers, 1, "num_workers")
    if isinstance(create_env_fn, Sequence):
        if num_workers not in (None, len(create_env_fn)):
            msg = (
                f"num_workers={num_workers}, and {len(create_env_fn)} functions: give one of them."
            )
            raise ValueError(msg)
        makers: list[Any] = list(create_env_fn)
    else:
        makers = [create_env_fn] * (num_workers or int(isinstance(create_env_fn, EnvBase)))
    if not makers:
        msg = "no worker to make: give a function for each, or one and num_workers."
        raise ValueError(msg)
    for make in makers:
        if isinstance(make, EnvBase) or not callable(make):
            msg = (
                f"workers make their environments themselves: give functions, got a "
                f"{type(make).__name__}. Write lambda: ..."
            )
            raise TypeError(msg)
    return makers


@dataclass(frozen=True, kw_only=True)
class MultiOptions:
    """The arguments of a `MultiCollector`, which documents them, but environments and policy."""

    num_workers: int
    sync: bool = False
    policy_factory: Callable[[], Any] | None = None
    frames_per_batch: int
    total_frames: int = -1
    replay_buffer: Any = None
    cat_results: str | int | None = None
    preemptive_threshold: float | None = None
    restart_workers: bool = False
    min_workers: int | None = None
    update_after_each_batch: bool = False
    max_weight_update_interval: int = -1
    mp_start_method: Literal["fork", "spawn", "forkserver"] | None = None
    timeout_s: float = 600.0
    progress: bool = False
    shutdown_timeout_s: float = 60.0
    options: Mapping[str, Any]  # of each worker's collector

    @classmethod
    def of(cls, arguments: Mapping[str, Any], num_workers: int) -> MultiOptions:
        """Take the arguments of a call, by their names."""
        given = {field.name: arguments[field.name] for field in fields(cls)}
        given["num_workers"] = num_workers  # where a function for each was given
        return cls(**given)

    def __post_init__(self) -> None:
        check_switches_of(self)
        limit_s = min(check_seconds(self.timeout_s, "timeout_s"), LONGEST_S)
        object.__setattr__(self, "timeout_s", limit_s)
        check_seconds(self.shutdown_timeout_s, "shutdown_timeout_s")
        check_count(self.frames_per_batch, 1, "frames_per_batch")
        check_count(self.max_weight_update_interval, -1, "max_weight_update_interval")
        if self.min_workers is not None:
            check_count(self.min_workers, 1, "min_workers")
            if self.min_workers > self.num_workers:
                msg = f"min_workers={self.min_workers}, and there are {self.num_workers} workers."
                raise ValueError(msg)
        own = {field.name for field in fields(self)} | {"producer"}
        known = {field.name for field in fields(CollectorOptions)} - own
        unknown = sorted(self.options.keys() - known)
        if unknown:
            msg = f"unknown options {unknown}: a worker's Collector takes {sorted(known)}."
            raise TypeError(msg)
        self._check_results()
        self._check_buffer()

    @property
    def update_interval(self) -> int:
        """After how many batches weights are handed on unasked; 0 or less for never."""
        return 1 if self.update_after_each_batch else self.max_weight_update_interval

    @property
    def by_trajectory(self) -> bool:
        """Whether complete trajectories are returned."""
        return self.options.get("trajs_per_batch") is not None

    @property
    def how(self) -> str | int:
        """How the batches of workers become one: "stack", or along which dimension."""
        if self.cat_results is not None:
            return self.cat_results
        return 0 if self.by_trajectory else "stack"

    @property
    def workers_write(self) -> bool:
        """Whether workers write to the buffer themselves."""
        return bool(getattr(self.replay_buffer, "is_shared", False))

    @property
    def routes(self) -> bool:
        """Whether each worker has a buffer of its own, which `for_worker` names."""
        return hasattr(self.replay_buffer, "for_worker")

    def buffer_of(self, worker: int) -> Any:
        """The buffer of a worker: the one of all, or its own."""
        buffer = self.replay_buffer
        return buffer.for_worker(worker, self.num_workers) if self.routes else buffer

    @property
    def joins(self) -> bool:
        """Whether the batches of workers become one."""
        return self.sync and (self.replay_buffer is None or self._num_dims > 1)

    @property
    def named_device(self) -> torch.device | None:
        """The device that batches name as their own; None if none was given."""
        names = ("storing_device", "device")
        said = {name: self.options[name] for name in names if self.options.get(name) is not None}
        return local_device(*next(iter(said.items()))) if said else None

    def of_workers(self) -> list[dict[str, Any]]:
        """The options of each worker's collector, and what makes its policy."""
        options = self._of_any_worker()
        if not (self.routes and self.workers_write):
            return [options] * self.num_workers
        return [
            {**options, "replay_buffer": self.buffer_of(worker)}
            for worker in range(self.num_workers)
        ]

    def _of_any_worker(self) -> dict[str, Any]:
        made = {
            **self.options,
            "frames_per_batch": self.frames_per_batch,
            "policy_factory": self.policy_factory,
            "no_cuda_sync": False,  # workers copy batches into what they hand over
            "replay_buffer": self.replay_buffer,
        }
        shared = ("frames_per_batch", "trajs_per_batch") if self.sync else ()
        for name in (*shared, "init_random_frames"):
            is_whole = name == "trajs_per_batch" and self.replay_buffer is not None
            if made.get(name) and not is_whole:
                made[name] = share_of(made[name], self.num_workers, name)
        if not self.workers_write:
            made["storing_device"] = "cpu"  # what they hand over is in shared memory
            made["replay_buffer"] = None if self.replay_buffer is None else Outbox()
        return made

    def _check_results(self) -> None:
        how, threshold = self.cat_results, self.preemptive_threshold
        if not self.sync and (how is not None or threshold is not None):
            msg = "cat_results and preemptive_threshold are for sync=True: batches come one by one."
            raise ValueError(msg)
        if how not in (None, "stack") and as_integer(how) is None:
            msg = f"cat_results must be 'stack' or a dimension: got {how!r}."
            raise ValueError(msg)
        if threshold is not None and not 0 < threshold <= 1:
            msg = f"preemptive_threshold must be in (0, 1]: got {threshold}."
            raise ValueError(msg)

    def _check_buffer(self) -> None:
        """Raise for a buffer in which the steps of several workers would be in one column."""
        buffer, count = self.replay_buffer, self.num_workers
        if buffer is not None and not hasattr(buffer, "extend"):
            msg = f"replay_buffer needs extend(): got {type(buffer).__name__}."
            raise TypeError(msg)
        if buffer is not None and not self.options.get("extend_buffer", True):
            self._check_single_steps()
        if self.routes:
            self.buffer_of(count - 1)  # raises unless there is one for each
            return
        lanes = getattr(getattr(buffer, "storage", None), "lanes", None)
        if self.workers_write and lanes is not None and 1 < lanes < count:
            msg = (
                f"a shared buffer with {lanes} lanes takes as many writers at a time, and there "
                f"are {count} workers: make its storage with lanes={count}."
            )
            raise ValueError(msg)
        is_apart = self.sync and self.how == "stack" and not self.workers_write
        is_cut = bool(self.options.get("set_truncated"))
        if self._num_dims > 1 and count > 1 and not is_apart and not is_cut:
            msg = (
                f"a storage with ndim={self._num_dims} writes the batches of {count} workers one "
                "after the other into the same columns: use ndim=1, a buffer for each worker, "
                'MultiSyncCollector with cat_results="stack", or set_truncated=True.'
            )
            raise ValueError(msg)

    def _check_single_steps(self) -> None:
        """Raise where steps cannot be written one by one, as by `add` of a buffer here."""
        if not self.workers_write:
            msg = (
                "extend_buffer=False writes steps in the worker that collects them: give a "
                "buffer that workers share (shared=True of rl-replay's), or leave it out."
            )
            raise ValueError(msg)

    @property
    def _num_dims(self) -> int:
        """Dimensions of the buffer's storage."""
        return int(getattr(getattr(self.replay_buffer, "storage", None), "ndim", 1))


def share_of(total: int, num_workers: int, name: str) -> int:
    """Divide a number among workers."""
    share = -(-total // num_workers)
    if share * num_workers != total:
        warnings.warn(
            f"{name}={total} is no multiple of {num_workers} workers: together they do "
            f"{share * num_workers}.",
            stacklevel=4,
        )
    return share
