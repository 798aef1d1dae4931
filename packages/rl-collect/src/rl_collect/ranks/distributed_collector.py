"""Collectors whose workers are the other ranks of a script that torchrun or Slurm has started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_collect.multi.carrier import Carrier
from rl_collect.multi.multi_collector import MultiCollector
from rl_collect.multi.options import WorkerMakers
from rl_collect.multi.remote_workers import RemoteWorkers
from rl_collect.ranks.group import RankGroup
from rl_collect.ranks.rank_worker import serve
from rl_collect.ranks.ranks import Ranks

_STARTED_BY = ("launcher", "slurm_kwargs", "tcp_port", "num_workers_per_collector")


class DistributedDataCollector(MultiCollector):
    """Plays environments in the other ranks of a script; otherwise as `MultiCollector`.

    For clusters on which torchrun or Slurm starts the script once for each rank, and Ray is not
    wanted. All ranks run the same script and construct the collector with the same arguments. The
    first rank is the learner: its script continues after the constructor. Every other one plays in
    the constructor until the learner shuts the collector down, and **ends then**: it runs no line
    after it. A script has one such collector, which uses a gloo group of its own.

    Ranks on the learner's machine write batches into shared memory and read new weights there. One
    on another machine sends each batch as one block, and gets the newest weights when it begins a
    batch. A rank that ends is not replaced: with `min_workers` the others go on.

    Args:
        create_env_fn: a function for each rank but the first, or one for all.
        policy: as for `Collector`; each rank acts with the weights of the learner's.
        sync: return one batch of all ranks together, otherwise each one's as it comes.
        backend: "gloo" or None: what carries batches and weights.
        options: what else `MultiCollector` takes but `mp_start_method` and `restart_workers`, and
            `Collector`.

    Raises:
        ValueError: the script is no rank, or there is no other one; the buffer is shared, which
            each rank would have made for itself; or as for `MultiCollector`.
        TypeError: an option of launchers.
        SystemExit: in every other rank, when the learner shuts down or is gone.

    Example:
        >>> DistributedDataCollector([lambda: None], frames_per_batch=8, backend="mpi")
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: backend='mpi': batches and weights travel on the CPU, by gloo. ...
    """

    def __init__(
        self,
        create_env_fn: WorkerMakers,
        policy: Any = None,
        *,
        sync: bool = False,
        backend: str | None = "gloo",
        **options: Any,
    ) -> None:
        _check(backend, options)
        self._group = RankGroup()
        try:
            super().__init__(
                create_env_fn, policy, sync=sync, num_workers=self._group.size - 1, **options
            )
        except BaseException:
            self._group.close()
            raise

    def _carrier(self, make: list[Callable[[], Any]]) -> Carrier:
        rank = self._group.rank
        if rank == 0:
            return RemoteWorkers(Ranks(self._group), timeout_s=self.options.timeout_s)
        try:
            serve(self._group, make[rank - 1])
        except RuntimeError as error:
            msg = f"rank {rank}: the learner, rank 0, is gone ({error})."
            raise SystemExit(msg) from None
        raise SystemExit(0)


class DistributedSyncCollector(DistributedDataCollector):
    """Ranks that begin each batch together; see `DistributedDataCollector`.

    Example:
        >>> issubclass(DistributedSyncCollector, DistributedDataCollector)
        True
    """

    def __init__(self, create_env_fn: WorkerMakers, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, sync=True, **options)


class RPCDataCollector:
    """A name only: the RPC of torch is no longer developed.

    Raises:
        NotImplementedError: always; it says what to use.

    Example:
        >>> RPCDataCollector()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        NotImplementedError: the RPC of torch is in maintenance, ...
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        msg = (
            "the RPC of torch is in maintenance, and there is no collector over it: use "
            "DistributedDataCollector (torchrun, Slurm) or RayCollector."
        )
        raise NotImplementedError(msg)


def _check(backend: str | None, options: dict[str, Any]) -> None:
    """Raise for what ranks cannot do."""
    if backend not in (None, "gloo"):
        msg = (
            f"backend={backend!r}: batches and weights travel on the CPU, by gloo. The script's "
            "own group may have any backend: call torch.distributed.init_process_group first."
        )
        raise ValueError(msg)
    if given := [name for name in _STARTED_BY if name in options]:
        msg = f"{', '.join(given)}: the collector starts no rank; torchrun or srun does."
        raise TypeError(msg)
    if "mp_start_method" in options:
        msg = "ranks have no mp_start_method: leave it out, or use MultiCollector."
        raise TypeError(msg)
    if options.get("restart_workers"):
        msg = (
            "a rank that ends cannot be replaced by the collector: give min_workers, let torchrun "
            "start all anew (--max-restarts), or use RayCollector."
        )
        raise ValueError(msg)
    if getattr(options.get("replay_buffer"), "is_shared", False):
        msg = (
            "each rank has made a shared buffer of its own, and the learner would see nothing of "
            "theirs: give one that is not shared, which the learner writes to."
        )
        raise ValueError(msg)
