"""Collectors whose environments are played by processes of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_collect.background import RunsInBackground
from rl_collect.crew import Crew
from rl_collect.joining import join
from rl_collect.multi_options import (
    Makers,
    check_buffer,
    check_options,
    makers_of,
    serve,
    share_of,
)
from rl_collect.progress import Progress
from rl_collect.servant import Outbox
from rl_collect.slots import Delivery
from rl_collect.weight_board import WeightBoard
from rl_envs import WorkerDied
from rl_slabs import RowSchema, Slab


class MultiCollector(RunsInBackground):
    """Plays environments in processes, and hands their batches out together or one by one.

    Each worker runs a `Collector` of its own. Batches come through shared memory; new weights go
    the same way, once for all workers. With a buffer that is shared between processes (its
    `is_shared` is true) the workers write to it themselves.

    Args:
        create_env_fn: a function for each worker, which makes its environment there; or one
            function and `num_workers`.
        policy: as for `Collector`; each worker has a copy.
        sync: hand out one batch of all workers together, begun with the same weights. Otherwise
            each worker's batch as it comes, while all go on.
        num_workers: how many, where `create_env_fn` is one function.
        policy_factory: makes the policy in the worker instead.
        frames_per_batch: steps in what is handed out; rounded up to a multiple of the workers.
        total_frames: steps to play in all; -1 for no end.
        replay_buffer: anything with `extend`; where batches go.
        cat_results: "stack" for `[W, *B, T]`, or the dimension to lay batches end to end along.
        preemptive_threshold: once this share of the workers is done, the others stop early.
        restart_workers: replace a worker that dies. What it had not handed over is lost, and its
            trajectories under way end there.
        mp_start_method: "fork", "spawn" or "forkserver", the last where None.
        timeout_s: longest time to wait for a batch of a worker.
        progress: show a bar.
        options: what else `Collector` takes, for each worker.

    Attributes:
        policy: the policy here; `update_policy_weights_()` hands its weights on.
        frames: steps handed out so far.

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
        create_env_fn: Makers,
        policy: Any = None,
        *,
        sync: bool,
        num_workers: int | None = None,
        policy_factory: Callable[[], Any] | None = None,
        frames_per_batch: int,
        total_frames: int = -1,
        replay_buffer: Any = None,
        cat_results: str | int | None = None,
        preemptive_threshold: float | None = None,
        restart_workers: bool = False,
        mp_start_method: Literal["fork", "spawn", "forkserver"] | None = None,
        timeout_s: float = 600.0,
        progress: bool = False,
        **options: Any,
    ) -> None:
        makers = makers_of(create_env_fn, num_workers)
        check_options(options, sync, cat_results, preemptive_threshold, (policy, policy_factory))
        self._sync, self._total = sync, total_frames
        self._by_trajectory = options.get("trajs_per_batch") is not None
        self._how = (
            cat_results if cat_results is not None else 0 if self._by_trajectory else "stack"
        )
        self._threshold = 1.0 if preemptive_threshold is None else preemptive_threshold
        self._buffer = replay_buffer
        self._workers_write = bool(getattr(replay_buffer, "is_shared", False))
        check_buffer(
            replay_buffer,
            len(makers),
            stacks=sync and self._how == "stack",
            workers_write=self._workers_write,
            set_truncated=bool(options.get("set_truncated")),
        )
        self._joins = getattr(getattr(replay_buffer, "storage", None), "ndim", 1) > 1
        self.policy, self.frames = policy, 0
        options |= {"frames_per_batch": frames_per_batch, "policy_factory": policy_factory}
        shared = ("frames_per_batch", "trajs_per_batch") if sync else ()
        for name in (*shared, "init_random_frames"):
            if options.get(name) and (name != "trajs_per_batch" or replay_buffer is None):
                options[name] = share_of(options[name], len(makers), name)
        options["replay_buffer"] = replay_buffer
        if replay_buffer is not None and not self._workers_write:
            options["replay_buffer"] = Outbox()
        self._crew = Crew(
            [functools.partial(serve, make, policy, options) for make in makers],
            mp_start_method,
            timeout_s=timeout_s,
            replaces=restart_workers,
            shares=not self._by_trajectory,
        )
        has_weights = isinstance(policy, nn.Module) and bool(policy.state_dict())
        self._board = WeightBoard.like(policy) if has_weights else None
        self._stop = None
        if preemptive_threshold is not None:
            self._stop = Slab.shared(RowSchema({"stop": (torch.int64, ())}), 1)
        self._crew.attach(self._board, self._stop)
        self._sizes: list[int] = self._crew.call_all("frames_of_batch")
        self._turn = 0
        self._progress = Progress(total_frames, is_on=progress)
        self._round: dict[int, TensorDictBase | None] = {}  # of workers that are done already
        self._ready: list[TensorDictBase] = []  # taken, not yet handed out
        self._shown = 0  # frames that the bar knows
        self._is_drained = self._is_shut = False

    # batches

    def __iter__(self) -> Iterator[TensorDictBase | None]:
        while self._has_more():
            yield self._batch()
        self._progress.close()

    def next(self) -> TensorDictBase | None:
        """One more batch; None where there is none, or it went to the buffer."""
        return self._batch() if self._has_more() else None

    def _batch(self) -> TensorDictBase | None:
        if self._ready:
            batch: TensorDictBase | None = self._ready.pop(0)
        else:
            batch = self._all() if self._sync else self._first()
        self._show()
        if self._buffer is None or batch is None:
            return batch
        self._buffer.extend(batch)
        return None

    def _all(self) -> TensorDictBase | None:
        """A batch of every worker; one that failed in between is asked again."""
        while len(self._round) < len(self._crew):
            for index in range(len(self._crew)):
                if index not in self._round and not self._crew.is_busy(index):
                    self._crew.begin(index)
            for index in self._crew.pool.wait():
                self._take(index)
            if self._stop is not None and len(self._round) >= self._threshold * len(self._crew):
                self._stop.columns()["stop"][0] = self._crew.newest
        found = [self._round[index] for index in range(len(self._crew))]
        self._round = {}
        batches = [batch for batch in found if batch is not None]
        if not batches:
            return None
        if self._buffer is not None and not self._joins:
            for batch in batches[:-1]:
                self._buffer.extend(batch)
            return batches[-1]
        return join(batches, self._how)

    def _first(self) -> TensorDictBase | None:
        """The batch of whoever is ready, in turn, while all go on."""
        count = len(self._crew)
        while True:
            for index in range(count):
                if not self._crew.is_busy(index) and self._may_begin(index):
                    self._crew.begin(index)
            ready = self._crew.pool.wait()
            index = min(ready, key=lambda one: (one - self._turn) % count)
            self._turn = (index + 1) % count
            told, batch = self._take(index, go_on=True)
            if told is not None:
                return batch

    def _may_begin(self, index: int) -> bool:
        """Whether frames are left that no worker plays yet."""
        playing = [
            size
            for other, size in enumerate(self._sizes)
            if other != index and self._crew.is_busy(other)
        ]
        return self._total == -1 or self.frames + sum(playing) < self._total

    def _take(
        self, index: int, *, go_on: bool = False
    ) -> tuple[Delivery | None, TensorDictBase | None]:
        """What a worker has played, which is counted; with `go_on` it begins its next batch."""

        def goes_on() -> bool:
            self._count(index)
            return go_on and self._may_begin(index)

        told, batch = self._crew.take(index, goes_on)
        if told is not None and self._sync:
            self._round[index] = batch
        return told, batch

    def _count(self, index: int) -> None:
        told = self._crew.told[index]
        self.frames += 0 if told is None else told.frames

    def _show(self) -> None:
        told = [one for one in self._crew.told if one is not None]
        if not told:
            return
        returns = [one.mean_return for one in told if one.episodes]
        mean = sum(returns) / len(returns) if returns else float("nan")
        frames = self.frames - self._shown
        self._shown = self.frames
        self._progress.add(frames, sum(one.episodes for one in told), mean, self._lag)

    # what is changed from outside

    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Hand new weights to all workers, who take them before their next batch.

        Args:
            policy_or_weights: a policy of the same kind, a state dictionary, or a tensordict of
                parameters; those of the policy here where None.

        Raises:
            TypeError: the policy has no weights, or these are none.
            KeyError: a weight is missing or unknown.
            ValueError: a weight has another shape.
        """
        self._require_open()
        if self._board is None:
            msg = f"a {type(self.policy).__name__} has no weights that could be replaced."
            raise TypeError(msg)
        self._board.publish(self.policy if policy_or_weights is None else policy_or_weights)

    @property
    def policy_version(self) -> int:
        """The newest version of the weights; each row carries the one that acted."""
        return 0 if self._board is None else self._board.newest

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all workers, each from the one before, actions included; they reset.

        Args:
            seed: a whole number, 0 or more.
            static_seed: seed all environments alike.

        Returns:
            A seed for the next collector, far from this one.
        """
        self._settle()
        return self._crew.set_seed(seed, static_seed)

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""
        return self._crew.restarts

    def reset(self) -> None:
        """Begin new trajectories with the next batches."""
        self._settle()
        self._crew.call_all("reset")

    def stats(self) -> dict[str, Any]:
        """Tell how far it is, and how.

        Returns:
            `frames`, `restarts`, `policy_version`, `policy_lag`: how many versions the last
            batches were behind it, on average; and `workers`: what each collector tells.
        """
        self._settle()
        return {
            "frames": self.frames,
            "restarts": self.restarts,
            "policy_version": self.policy_version,
            "policy_lag": self._lag,
            "workers": self._crew.call_all("stats"),
        }

    @property
    def _lag(self) -> float:
        told = [one for one in self._crew.told if one is not None]
        return sum(self.policy_version - one.version for one in told) / max(len(told), 1)

    def state_dict(self) -> dict[str, Any]:
        """Save all workers and the newest weights.

        Returns:
            Tensors, numbers and dictionaries of them, which `torch.save` can write.

        Raises:
            NotImplementedError: an environment cannot save its state, or the workers go on by
                themselves.
        """
        self._require_sync()
        self._settle()
        return {
            "frames": self.frames,
            "policy_version": self.policy_version,
            "workers": self._crew.call_all("state_dict"),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the collector that was saved would have, bit for bit, ids included.

        Args:
            state: what `state_dict` of a collector of as many workers returned.

        Raises:
            ValueError: it is of another number of workers.
            NotImplementedError: an environment cannot load a state.
        """
        self._require_sync()
        self._settle()
        saved = state["workers"]
        if len(saved) != len(self._crew):
            msg = f"the state is of {len(saved)} workers: expected {len(self._crew)}."
            raise ValueError(msg)
        self.frames = self._shown = state["frames"]
        self._round, self._ready = {}, []
        for index, one in enumerate(saved):
            self._crew.call(index, "load_state_dict", one)
        if isinstance(self.policy, nn.Module) and self._board is not None:
            self.policy.load_state_dict(saved[0]["policy"])
            old = self._board
            self._board = WeightBoard.like(self.policy, state["policy_version"])
            self._crew.attach(self._board, self._stop)
            old.close()

    # the end

    def shutdown(self, timeout_s: float = 60.0) -> None:
        """Stop, write what is unfinished as truncations, end the workers; twice is nothing.

        Args:
            timeout_s: longest time to wait for the batches under way; then workers are killed.

        Raises:
            TimeoutError: the background did not stop in time.
            Exception: whatever was raised in the background.
        """
        if self._is_shut:
            return
        try:
            if self._background is not None:
                self._background.stop(timeout_s)
            if self._buffer is not None and not self._workers_write:
                self._store_unfinished(timeout_s)
        finally:
            self._is_shut = True  # not before: the background would find it closed
            self._progress.close()
            try:
                self._crew.close(timeout_s)
            finally:
                for shared in (self._board, self._stop):
                    if shared is not None:
                        shared.close()

    def _store_unfinished(self, timeout_s: float) -> None:
        """Write what is there; what a worker held that is gone now is gone as well."""
        failure: Exception | None = None
        self._crew.replaces = False
        found = [*self._ready, *self._round.values()]
        for index in range(len(self._crew)):
            try:
                if self._crew.is_busy(index):
                    found.append(self._crew.take(index, timeout_s=timeout_s)[1])
                found.append(self._crew.call(index, "finish"))
            except WorkerDied:
                continue
            except Exception as error:
                failure = error
        for batch in found:
            if isinstance(batch, TensorDictBase):
                self._buffer.extend(batch)
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __len__(self) -> int:
        if self._total == -1:
            msg = "this collector has no end: give total_frames, or do not ask for its length."
            raise TypeError(msg)
        of_batch = sum(self._sizes) if self._sync else max(self._sizes)
        return -(-self._total // of_batch)

    def __repr__(self) -> str:
        total = "any number" if self._total == -1 else self._total
        kind = "together" if self._sync else "one by one"
        return (
            f"{type(self).__name__}({len(self._crew)} workers {kind}, {self._sizes} frames a "
            f"batch, {self.frames} of {total} played)"
        )

    def _work(self) -> bool:
        if self._has_more():
            self._batch()
        return self._has_more()

    def _has_more(self) -> bool:
        self._require_open()
        if self._total == -1 or self.frames < self._total or self._ready:
            return True
        return self._by_trajectory and self._buffer is None and self._drain()

    def _drain(self) -> bool:
        """Take the whole trajectories that no batch has handed out; say whether there are any."""
        if not self._is_drained:
            self._is_drained = True
            self._settle()
            found = [self._round.pop(index, None) for index in range(len(self._crew))]
            found += self._crew.call_all("drain")
            self._ready += [batch for batch in found if isinstance(batch, TensorDictBase)]
        return bool(self._ready)

    def _require_sync(self) -> None:
        self._require_open()
        if not self._sync:
            msg = (
                "workers that go on by themselves have no moment at which all stand still: save "
                "the buffer and the policy, or collect with sync=True."
            )
            raise NotImplementedError(msg)

    def _settle(self) -> None:
        """Wait until no worker has a batch under way; those batches are kept for later."""
        self._require_open()
        for index in range(len(self._crew)):
            if self._crew.is_busy(index):
                _, batch = self._take(index)
                if batch is not None and not self._sync:
                    self._ready.append(batch)


class MultiSyncCollector(MultiCollector):
    """Workers that begin each batch together; see `MultiCollector`.

    Example:
        >>> issubclass(MultiSyncCollector, MultiCollector)
        True
    """

    def __init__(self, create_env_fn: Makers, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, sync=True, **options)


class MultiAsyncCollector(MultiCollector):
    """Workers that go on by themselves; see `MultiCollector`.

    Example:
        >>> issubclass(MultiAsyncCollector, MultiCollector)
        True
    """

    def __init__(self, create_env_fn: Makers, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, sync=False, **options)
