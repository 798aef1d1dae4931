"""Collectors whose environments are played by processes of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from tensordict import TensorDictBase

from rl_collect.background_loop import TimeLimit
from rl_collect.inputs.devices import mover
from rl_collect.inputs.policies import takes_steps
from rl_collect.interface import CollectorInterface, between_batches
from rl_collect.multi.carrier import Carrier, Processes
from rl_collect.multi.concat import join
from rl_collect.multi.options import MultiOptions, WorkerMakers, check_picklable, makers_of
from rl_collect.multi.schedule import AsyncSchedule, Schedule, SyncSchedule
from rl_collect.multi.worker import make_worker
from rl_collect.multi.worker_group import WorkerGroup
from rl_collect.weights.worker_weights import WorkerWeights
from rl_tensordict import draw_seed
from rl_tensordict.arguments import check_state
from rl_workers import WorkerDied


class MultiCollector(CollectorInterface):
    """Plays environments in processes, and hands their batches out together or one by one.

    Each worker runs a `Collector` of its own. Batches come through shared memory; new weights go
    the same way, once for all workers. With a buffer that is shared between processes (its
    `is_shared` is true) the workers write to it themselves.

    Args:
        create_env_fn: a function for each worker, which makes its environment there; or one
            function and `num_workers`.
        policy: as for `Collector`; each worker has a copy.
        sync: return one batch of all workers together, begun with the same weights. Otherwise
            each worker's batch as it comes, while all continue; that is what TorchRL does too where
            nothing is said.
        num_workers: how many, where `create_env_fn` is one function.
        policy_factory: makes the policy in the worker instead.
        frames_per_batch: steps in what is returned; rounded up to a multiple of the workers.
        total_frames: steps to play in all; -1 for no end.
        replay_buffer: anything with `extend`; where batches go. One with `for_worker`, as ensembles
            of rl-replay have, names a buffer for each worker.
        cat_results: "stack" for `[W, *B, T]`, or the dimension to concatenate batches along.
        preemptive_threshold: once this share of the workers is done, the others stop early.
        restart_workers: replace a worker that dies. What it had not handed over is lost, and its
            trajectories under way end there.
        min_workers: continue with so many, where others died for good or have not started yet; all
            where None. What is returned together has fewer batches then.
        update_after_each_batch: hand on the weights of the policy here whenever a batch was
            returned.
        max_weight_update_interval: hand them on at the latest after so many batches; -1 for never
            unasked.
        mp_start_method: "fork", "spawn" or "forkserver", the last where None.
        timeout_s: longest time to wait for a batch of a worker.
        progress: show a bar.
        shutdown_timeout_s: longest time for `shutdown` to wait for batches under way; then workers
            are killed.
        options: what else `Collector` takes, for each worker.

    Attributes:
        policy: the policy here; `update_policy_weights_()` hands its weights on.

    Raises:
        ValueError: options that exclude each other, or numbers that do not fit.
        TypeError: an option that `Collector` does not know.
        WorkerDied: a worker ended while it started.
        Exception: whatever making an environment raised in a worker.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> with MultiCollector(
        ...     [CountingEnv, CountingEnv],
        ...     sync=True,
        ...     frames_per_batch=6,
        ...     total_frames=6,
        ...     mp_start_method="fork",
        ... ) as collector:
        ...     [batch["observation"].squeeze(-1).tolist() for batch in collector]
        [[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]]
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        create_env_fn: WorkerMakers,
        policy: Any = None,
        *,
        sync: bool = False,
        num_workers: int | None = None,
        policy_factory: Callable[[], Any] | None = None,
        frames_per_batch: int,
        total_frames: int = -1,
        replay_buffer: Any = None,
        cat_results: str | int | None = None,
        preemptive_threshold: float | None = None,
        restart_workers: bool = False,
        min_workers: int | None = None,
        update_after_each_batch: bool = False,
        max_weight_update_interval: int = -1,
        mp_start_method: Literal["fork", "spawn", "forkserver"] | None = None,
        timeout_s: float = 600.0,
        progress: bool = False,
        shutdown_timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        policy = None if takes_steps(policy) else policy
        makers = makers_of(create_env_fn, num_workers)
        if policy is not None and policy_factory is not None:
            msg = "policy and policy_factory exclude each other: give one of them."
            raise ValueError(msg)
        self.options = MultiOptions.of(locals(), len(makers))
        super().__init__(
            total_frames, replay_buffer, progress=progress, shutdown_timeout_s=shutdown_timeout_s
        )
        self.policy = policy
        device = self._named_device = self.options.named_device
        # workers name the device of the memory that they hand over
        self._move = mover(device or torch.device("cpu"), clears=device is None)
        self._ready: list[TensorDictBase] = []  # taken, not yet returned
        self._shown = 0  # frames that the bar knows
        self._has_popped = False
        self._start_workers(makers)

    def _start_workers(self, makers: list[Callable[..., Any]]) -> None:
        options, policy = self.options, self.policy
        given = options.of_workers()
        seeds = [draw_seed(2**31)]
        self._workers = WorkerGroup(
            self._carrier(
                [
                    functools.partial(make_worker, make, policy, one, seeds=seeds, index=index)
                    for index, (make, one) in enumerate(zip(makers, given, strict=True))
                ]
            ),
            seeds,
            restarts_workers=options.restart_workers,
            min_workers=options.min_workers,
            shares=not options.by_trajectory,
            sink=self._write_of if options.routes and not options.workers_write else None,
        )
        sizes: list[int] = self._workers.call_all("frames_of_batch")
        # workers that have not started yet are like the others
        self._sizes = (sizes + [max(sizes)] * len(makers))[: len(makers)]
        self._schedule: Schedule = (
            SyncSchedule(self._workers, options.preemptive_threshold)
            if options.sync
            else AsyncSchedule(self._workers, self._sizes, options.total_frames)
        )
        weights = self._workers.weights() if policy is None else policy
        self._weights = WorkerWeights.like(weights, policy, options.update_interval)
        self._workers.attach(self._weights.shared, self._schedule.stop)

    def _carrier(self, make: list[Callable[[], Any]]) -> Carrier:
        """What starts the workers and carries their messages."""
        options = self.options
        check_picklable(self.policy, options.mp_start_method)
        return Processes(
            make,
            start_method=options.mp_start_method,
            preload=["rl_collect"],
            timeout_s=options.timeout_s,
            name="collector worker",
        )

    # batches

    @property
    def frames(self) -> int:
        """Steps delivered so far."""
        return self._workers.frames

    def _batch(self) -> TensorDictBase | None:
        self._weights.count_batch()
        if not self._ready:
            found = self._schedule.next()
            self._ready = [join(found, self.options.how)] if self.options.joins and found else found
        self._workers.warnings.warn(3)
        self._show()
        if self._buffer is None:
            return self._on_device(self._ready.pop(0)) if self._ready else None
        while self._ready:
            self._buffer.extend(self._on_device(self._ready.pop(0)))
        return None

    def _write_of(self, worker: int, batch: TensorDictBase) -> None:
        """Write a batch to the buffer of its worker."""
        self.options.buffer_of(worker).extend(self._on_device(batch))

    def _on_device(self, batch: TensorDictBase) -> TensorDictBase:
        moved: TensorDictBase = self._move(batch)
        return moved if self._named_device is None else moved.to(self._named_device)

    def _show(self) -> None:
        stats = self._workers.known_stats
        returns = [one["mean_return"] for one in stats if one["episodes"]]
        mean = sum(returns) / len(returns) if returns else float("nan")
        frames = self.frames - self._shown
        self._shown = self.frames
        self._progress.add(frames, sum(one["episodes"] for one in stats), mean, self._lag)

    # what is changed from outside

    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Hand new weights to all workers, who take them before their next batch.

        Args:
            policy_or_weights: a policy of the same kind, a state dictionary, or a tensordict of
                parameters; those of the policy here where None.

        Raises:
            TypeError: the policy has no weights, or these are none.
            ValueError: a weight is missing or unknown, has another shape, or a dtype that cannot be
                cast. The weights stay as they were.
        """
        self._require_open()
        self._weights.publish(policy_or_weights)

    @property
    def policy_version(self) -> int:
        """The newest version of the weights; each row carries the one that acted."""
        return self._weights.version

    @between_batches
    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all workers, each from the one before, actions included; they reset.

        Args:
            seed: a whole number, 0 or more.
            static_seed: seed all environments alike.

        Returns:
            A seed for the next collector, far from this one.
        """
        self._drain()
        return self._workers.set_seed(seed, static_seed)

    @property
    def pids(self) -> list[int]:
        """The numbers of the workers' processes, for debuggers and profilers."""
        return self._workers.pool.pids

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""
        return self._workers.restarts

    @between_batches
    def reset(self) -> None:
        """Begin new trajectories with the next batches."""
        self._drain()
        self._workers.call_all("reset")
        self._workers.refresh()

    def stats(self) -> dict[str, Any]:
        """Tell how far it is, or came until `shutdown`, without waiting for anybody.

        Returns:
            `frames`, `restarts`, `policy_version`, `policy_lag`: how many versions the last
            batches were after it, on average; `missing`: the workers that take no part now;
            `routes`: what carries the batches of each; and `workers`: what each collector reported
            with its last batch. A route is "memory" with processes; "gloo" with ranks; with actors
            "socket" on this machine and "blocks" from others, or "ray", which is slower, where an
            actor could not connect to this process; "" before the worker has started.
        """
        return {
            "frames": self.frames,
            "restarts": self.restarts,
            "policy_version": self.policy_version,
            "policy_lag": self._lag,
            "missing": self._workers.missing,
            "routes": [self._workers.pool.route(index) for index in range(len(self._workers))],
            "workers": [dict(one) for one in self._workers.stats],
        }

    @property
    def _lag(self) -> float:
        stats = self._workers.known_stats
        staleness: int = sum(self.policy_version - one["policy_version"] for one in stats)
        return staleness / len(stats)

    @between_batches
    def state_dict(self) -> dict[str, Any]:
        """Save all workers, and the weights that were published last.

        Returns:
            Tensors, numbers and dictionaries of them, which `torch.save` can write.

        Raises:
            NotImplementedError: an environment cannot save its state, or the workers continue by
                themselves.
            RuntimeError: some workers have delivered a batch, and others have failed to.
        """
        self._require_sync()
        self._drain()
        self._workers.require_all()
        if self._ready or self._schedule.has_part:
            msg = "a batch is under way that was not returned: take it by next(), then save."
            raise RuntimeError(msg)
        return {
            "frames": self.frames,
            "policy_version": self.policy_version,
            "workers": self._workers.call_all("state_dict"),
        }

    @between_batches
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the collector that was saved would have, bit for bit, ids included.

        Args:
            state: what `state_dict` of a collector of as many workers returned.

        Raises:
            ValueError: it is of another number of workers, or of other environments. The collector
                is unchanged then.
            NotImplementedError: an environment cannot load a state.
        """
        self._require_sync()
        self._drain()
        self._workers.require_all()
        check_state(type(self).__name__, state, ("frames", "policy_version", "workers"))
        saved = state["workers"]
        if len(saved) != len(self._workers):
            msg = f"the state is of {len(saved)} workers: expected {len(self._workers)}."
            raise ValueError(msg)
        before = self._workers.call_all("state_dict")
        try:
            self._workers.load_states(saved)
        except BaseException:
            self._workers.load_states(before)
            raise
        self._schedule.take_remaining()
        self._workers.frames = self._shown = state["frames"]
        self._ready, self._has_popped = [], False
        if self._weights.shared is not None:
            old = self._weights
            self._weights = old.restored(saved[0]["policy"], state["policy_version"])
            self._workers.attach(self._weights.shared, self._schedule.stop)
            old.close()
        self._workers.refresh()

    # the end

    def _close(self, time_limit: TimeLimit) -> None:
        """Stop the workers; kill those still running after the time limit."""
        try:
            self._workers.close(time_limit)
        finally:
            for shared in (self._weights, self._schedule.stop):
                if shared is not None:
                    shared.close()

    def _write_unfinished(self, time_limit: TimeLimit) -> None:
        """Write what is there; what a worker held that is gone now is gone as well."""
        if self._buffer is None or self.options.workers_write:
            return
        failure: Exception | None = None
        self._workers.restarts_workers = False
        found: list[Any] = [*self._ready, *self._schedule.take_remaining()]
        for index in self._workers.present:
            try:
                if self._workers.is_busy(index):
                    found.append(self._workers.take_at_last(index, time_limit)[1])
                rest = self._workers.finish(index, time_limit)
                if self.options.routes and isinstance(rest, TensorDictBase):
                    self._write_of(index, rest)
                    continue
                found.append(rest)
            except WorkerDied:
                continue
            except Exception as error:
                failure = error
        for batch in found:
            if isinstance(batch, TensorDictBase):
                self._buffer.extend(self._on_device(batch))
        if failure is not None:
            raise failure

    @property
    def frames_of_batch(self) -> int:
        """Steps that a batch has, of all environments together."""
        return sum(self._sizes) if self.options.sync else max(self._sizes)

    def __repr__(self) -> str:
        total = "any number" if self._total == -1 else self._total
        kind = "together" if self.options.sync else "one by one"
        return (
            f"{type(self).__name__}({len(self._workers)} workers {kind}, {self._sizes} frames a "
            f"batch, {self.frames} of {total} played)"
        )

    def _count_stored(self) -> int:
        held: int = sum(one["unfinished_frames"] for one in self._workers.known_stats)
        return self.frames - held

    def _waits(self) -> bool:
        """Take, once, the trajectories that workers hold, unfinished ones as truncations."""
        can_drain = self.options.by_trajectory and self._buffer is None and not self._has_popped
        if not self._ready and can_drain:
            self._has_popped = True
            self._drain()
            found = [*self._schedule.take_remaining(), *self._workers.call_all("pop_trajectories")]
            self._workers.refresh()
            self._ready += [batch for batch in found if isinstance(batch, TensorDictBase)]
        return bool(self._ready)

    def _require_sync(self) -> None:
        if not self.options.sync:
            msg = (
                "workers that continue by themselves have no moment at which all stand still: save "
                "the buffer and the policy, or collect with sync=True."
            )
            raise NotImplementedError(msg)

    def _drain(self) -> None:
        """Wait until no worker has a batch under way; those batches are kept for later."""
        self._ready += self._schedule.drain()


class MultiSyncCollector(MultiCollector):
    """Workers that begin each batch together; see `MultiCollector`.

    Example:
        >>> issubclass(MultiSyncCollector, MultiCollector)
        True
    """

    def __init__(self, create_env_fn: WorkerMakers, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, sync=True, **options)


class MultiAsyncCollector(MultiCollector):
    """Workers that continue by themselves; see `MultiCollector`.

    Example:
        >>> issubclass(MultiAsyncCollector, MultiCollector)
        True
    """

    def __init__(self, create_env_fn: WorkerMakers, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, sync=False, **options)
