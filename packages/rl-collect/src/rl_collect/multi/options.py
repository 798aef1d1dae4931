"""What a collector over processes may be given, and what it makes of it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from rl_collect.collector import Collector
from rl_collect.multi.worker import CollectorWorker, Outbox
from rl_envs import EnvBase

Makers = Callable[..., Any] | Sequence[Callable[..., Any]]


def make_worker(
    make_env: Callable[..., Any], policy: Any, options: Mapping[str, Any]
) -> CollectorWorker:
    """Make what a worker holds; called there."""
    given = dict(options)
    factory = given.pop("policy_factory")
    acting = policy if factory is None else factory()
    return CollectorWorker(lambda: Collector(make_env, acting, **given))


def sent(policy: Any, start_method: str | None) -> Any:
    """The policy, which its way to a worker must not break."""
    if start_method == "fork" or not isinstance(policy, nn.Module):
        return policy
    for name, part in policy.named_modules():
        if part._compiled_call_impl is not None:
            where = f"its part {name!r}" if name else "it"
            msg = (
                f"the policy, a {type(policy).__name__}, cannot be pickled on its way to workers: "
                f"{where} was compiled in place by {type(part).__name__}.compile(). Give "
                "torch.compile(policy), a policy_factory that compiles in the worker, or "
                'mp_start_method="fork".'
            )
            raise TypeError(msg)
    return policy


def makers_of(create_env_fn: Makers, num_workers: int | None) -> list[Callable[..., Any]]:
    """List a function for each worker."""
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


def check_options(
    options: Mapping[str, Any],
    sync: bool,
    cat_results: str | int | None,
    threshold: float | None,
    policies: tuple[Any, Any],
) -> None:
    """Raise for options that cannot be."""
    known = inspect.signature(Collector).parameters.keys() - {
        "progress",
        "producer",
        "shutdown_timeout_s",
    }
    unknown = sorted(options.keys() - known)
    if unknown:
        msg = f"unknown options {unknown}: a worker's Collector takes {sorted(known)}."
        raise TypeError(msg)
    if None not in policies:
        msg = "policy and policy_factory exclude each other: give one of them."
        raise ValueError(msg)
    if not sync and (cat_results is not None or threshold is not None):
        msg = "cat_results and preemptive_threshold are for sync=True: batches come one by one."
        raise ValueError(msg)
    if cat_results not in (None, "stack") and not isinstance(cat_results, int):
        msg = f"cat_results must be 'stack' or a dimension: got {cat_results!r}."
        raise ValueError(msg)
    if threshold is not None and not 0 < threshold <= 1:
        msg = f"preemptive_threshold must be in (0, 1]: got {threshold}."
        raise ValueError(msg)


def check_buffer(
    buffer: Any, num_workers: int, *, stacks: bool, workers_write: bool, set_truncated: bool
) -> bool:
    """Raise for a buffer in which the steps of several workers would be in one column."""
    if buffer is not None and not hasattr(buffer, "extend"):
        msg = f"replay_buffer needs extend(): got {type(buffer).__name__}."
        raise TypeError(msg)
    storage = getattr(buffer, "storage", None)
    ndim, lanes = getattr(storage, "ndim", 1), getattr(storage, "lanes", None)
    if workers_write and lanes is not None and 1 < lanes < num_workers:
        msg = (
            f"a shared buffer with {lanes} lanes takes as many writers at a time, and there are "
            f"{num_workers} workers: make its storage with lanes={num_workers}."
        )
        raise ValueError(msg)
    if ndim > 1 and num_workers > 1 and (workers_write or not stacks) and not set_truncated:
        msg = (
            f"a storage with ndim={ndim} lays the batches of {num_workers} workers after one "
            "another in the same columns: use ndim=1, a buffer for each worker, "
            'MultiSyncCollector with cat_results="stack", or set_truncated=True.'
        )
        raise ValueError(msg)
    return bool(ndim > 1)


def worker_options(
    options: Mapping[str, Any], num_workers: int, sync: bool, buffer: Any, *, workers_write: bool
) -> dict[str, Any]:
    """Make the options of each worker's collector out of those of all."""
    made = {**options, "replay_buffer": buffer}
    shared = ("frames_per_batch", "trajs_per_batch") if sync else ()
    for name in (*shared, "init_random_frames"):
        if options.get(name) and (name != "trajs_per_batch" or buffer is None):
            made[name] = share_of(options[name], num_workers, name)
    if not workers_write:
        made["storing_device"] = "cpu"  # what they hand over is in shared memory
        made["replay_buffer"] = None if buffer is None else Outbox()
    return made


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
