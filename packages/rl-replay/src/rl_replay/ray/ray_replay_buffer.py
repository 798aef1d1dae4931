"""A replay buffer in an actor of Ray, for clients on its machine and on others."""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.buffer.tensordict_buffer import TensorDictReplayBuffer
from rl_replay.ray.remote_buffer import RemoteBuffer, answer
from rl_replay.ray.server import BufferFacts, BufferServer, StorageFacts
from rl_replay.storages import Storage
from rl_tensordict.arguments import check_number
from rl_workers.ray_cluster import (
    Config,
    import_ray,
    join_cluster,
    pickled,
    require_resources,
    wanted_by,
)

_ENDING_S = 5.0
_MADE_THERE = ("storage", "sampler", "writer", "generator")


class RayReplayBuffer:
    """A shared buffer in an actor of Ray; give it to workers, actors and tasks on any machine.

    Clients on the actor's machine attach to its memory: what they write and sample passes Ray by,
    and they continue if the actor ends. Others send rows and receive samples as one block of bytes
    each, and may ask for samples ahead of time. The actor lives until no process has the buffer any
    more, the program that made it ends, or `close()`.

    Args:
        storage: A function that makes the storage in the actor, as
            `functools.partial(LazyTensorStorage, 10_000)`; of a kind that can be shared.
        sampler: The sampler, or a function that makes it there; so for `writer` and `generator`.
        replay_buffer_cls: The class of the buffer.
        remote_config: Options of the actor, `num_cpus`, `resources` and so on. Unless they
            say otherwise, it reserves nothing and is on the machine of the program that makes it.
        ray_init_config: Arguments of `ray.init`, where this process has no session yet.
        prefetch: Batches that a client on another machine asks for ahead of time, and that one
            on the actor's machine makes ahead of time; needs `batch_size`. Those of another machine
            may have been drawn before others wrote, never before a write of the same client.
        timeout_s: Longest time to wait for an answer of the actor.
        parts: What else the class of the buffer takes but `shared`.

    Attributes:
        is_shared: True: several processes may write at a time.
        reaches_other_nodes: True: they may be on other machines.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: No cluster answers at the address.
        TypeError: A part that cannot be pickled, a storage that cannot be shared, or an argument of
            another kind.
        ValueError: The cluster has fewer resources than the actor asks for, or a time is negative.

    Example:
        >>> RayReplayBuffer(storage=1)
        Traceback (most recent call last):
        TypeError: storage must be a function, which the actor calls: got int. Write lambda: ...
    """

    is_shared = True
    reaches_other_nodes = True

    def __init__(
        self,
        *,
        storage: Callable[[], Storage],
        replay_buffer_cls: type[ReplayBuffer] = TensorDictReplayBuffer,
        remote_config: Config | None = None,
        ray_init_config: Config | None = None,
        prefetch: int | None = None,
        timeout_s: float = 600.0,
        **parts: Any,
    ) -> None:
        _check_made_of(storage, replay_buffer_cls)
        config = _options(remote_config)
        check_number("timeout_s", timeout_s)
        if not 0 <= timeout_s < math.inf:
            raise ValueError(f"timeout_s must be seconds, 0 or more and finite: got {timeout_s}.")
        self._ahead, self._timeout_s = prefetch or 0, timeout_s
        ray = import_ray("rl-replay", "Processes of one machine do without: shared=True.")
        given = {**parts, "storage": storage, "prefetch": prefetch}
        make = functools.partial(make_buffer, replay_buffer_cls, given)
        made = pickled(ray.cloudpickle, make, given, "a RayReplayBuffer")
        join_cluster(ray, ray_init_config)
        require_resources(ray, [config])
        if not wanted_by(config) and "scheduling_strategy" not in config:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            here = ray.get_runtime_context().get_node_id()
            config["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
        once = {"max_restarts": 0, "max_task_retries": 0}  # a repeated call would write twice
        self._handle = ray.remote(BufferServer).options(**once, **config).remote()
        facts: BufferFacts = answer(ray, self._handle.start.remote(made), timeout_s)
        self._facts = facts
        self._bound: Any = None

    @property
    def bound(self) -> Any:
        """The buffer over the actor's memory, or on another machine what sends and receives."""
        if self._bound is None:
            self._bound = self._bind()
        return self._bound

    def _bind(self) -> Any:
        ray = import_ray("rl-replay", "A RayReplayBuffer needs it wherever it is used.")
        facts, timeout_s = self._facts, self._timeout_s
        if ray.get_runtime_context().get_node_id() != facts.node:
            return RemoteBuffer(self._handle, facts, ahead=self._ahead, timeout_s=timeout_s)
        return pickle.loads(answer(ray, self._handle.attachment.remote(), timeout_s, facts.node))

    @property
    def is_attached(self) -> bool:
        """Whether this process is on the actor's machine, and needs Ray for nothing."""
        return not isinstance(self.bound, RemoteBuffer)

    @property
    def node(self) -> str:
        """Ray's id of the machine that the rows are on."""
        return self._facts.node

    @property
    def storage(self) -> Storage | StorageFacts:
        """The storage; on another machine what is known of it."""
        found: Storage | StorageFacts = self.bound.storage
        return found

    @property
    def batch_size(self) -> int | None:
        """Rows of a sample, unless `sample` says otherwise; a client has its own."""
        size: int | None = self.bound.batch_size
        return size

    @batch_size.setter
    def batch_size(self, size: int | None) -> None:
        self.bound.batch_size = size

    @property
    def first_rows_timeout(self) -> float:
        """Seconds that `sample` waits for the first row."""
        seconds: float = self.bound.first_rows_timeout
        return seconds

    @first_rows_timeout.setter
    def first_rows_timeout(self, seconds: float) -> None:
        self.bound.first_rows_timeout = seconds

    def __len__(self) -> int:
        """How many rows there are; on another machine, as the actor's last answer said."""
        return len(self.bound)

    @property
    def write_count(self) -> int:
        """Rows ever written; on another machine, as the actor's last answer said."""
        count: int = self.bound.write_count
        return count

    def add(self, data: Any) -> Any:
        """Store one row; see `TensorDictReplayBuffer.add`."""
        return self._write("add", data)

    def extend(self, data: Any) -> torch.Tensor:
        """Store several rows, and wait until they are stored; see `ReplayBuffer.extend`."""
        index: torch.Tensor = self._write("extend", data)
        return index

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draw a batch; see `ReplayBuffer.sample`. On another machine it comes on the CPU."""
        return self.bound.sample(batch_size, return_info, timeout=timeout)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.bound)

    def __getitem__(self, index: Any) -> Any:
        return self._read("__getitem__", index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._write("__setitem__", index, value)

    def update_rows(self, rows: torch.Tensor, tensordict: TensorDictBase) -> torch.Tensor:
        """Write leaves of rows back; see `ReplayBuffer.update_rows`."""
        standing: torch.Tensor = self._write("update_rows", rows, tensordict)
        return standing

    def update_priority(self, index: Any, priority: torch.Tensor | float) -> None:
        """Set priorities of rows by index; see `ReplayBuffer.update_priority`."""
        self._write("update_priority", index, priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of sampled rows; see `TensorDictReplayBuffer`."""
        self.bound.update_tensordict_priority(data)

    def empty(self) -> None:
        """Drop every row."""
        self._write("empty")

    def wait_until(self, rows: int, timeout: float | None = None) -> None:
        """Wait until there are so many rows; see `ReplayBuffer.wait_until`."""
        self.bound.wait_until(rows, timeout)

    def dumps(self, path: str) -> None:
        """Write the buffer to a folder on the actor's machine; see `ReplayBuffer.dumps`."""
        self._read("dumps", path)

    def loads(self, path: str) -> None:
        """Restore it from a folder on the actor's machine; see `ReplayBuffer.loads`."""
        self._write("loads", path)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next samples depend on; see `ReplayBuffer.state_dict`."""
        state: dict[str, Any] = self._read("state_dict")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another buffer."""
        self._write("load_state_dict", state)

    def stats(self) -> dict[str, float]:
        """Figures; see `ReplayBuffer.stats`."""
        figures: dict[str, float] = self._read("stats")
        return figures

    def explain(self) -> str:
        """Describes what is stored, and where."""
        where = f"in an actor on node {self.node[:8]}, {'' if self.is_attached else 'not '}attached"
        return f"{self._read('explain')}\n  {where}"

    def close(self) -> None:
        """End the actor, and wait for its end.

        Memory goes with the last process that is attached to it.
        """
        ray = import_ray("rl-replay", "A RayReplayBuffer needs it wherever it is used.")
        if ray.is_initialized():
            ray.kill(self._handle, no_restart=True)
            with contextlib.suppress(ray.exceptions.RayError):
                while True:  # it answers what came before
                    ray.get(self._handle.counts.remote(), timeout=_ENDING_S)

    def _read(self, name: str, *args: Any) -> Any:
        bound = self.bound
        if isinstance(bound, RemoteBuffer):
            return bound.read(name, *args)
        return getattr(bound, name)(*args)

    def _write(self, name: str, *args: Any) -> Any:
        bound = self.bound
        if isinstance(bound, RemoteBuffer):
            return bound.write(name, *args)
        return getattr(bound, name)(*args)

    def __enter__(self) -> RayReplayBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_bound": None}  # each process attaches for itself

    def __repr__(self) -> str:
        return f"RayReplayBuffer({self.storage!r}, on node {self.node[:8]})"


def _check_made_of(storage: Any, replay_buffer_cls: Any) -> None:
    if not callable(storage):
        raise TypeError(
            "storage must be a function, which the actor calls: got "
            f"{type(storage).__name__}. Write lambda: ..."
        )
    is_class = isinstance(replay_buffer_cls, type)
    if not (
        issubclass(replay_buffer_cls, ReplayBuffer) if is_class else callable(replay_buffer_cls)
    ):
        raise TypeError(
            "replay_buffer_cls must be a class of buffers, which the actor calls: got "
            f"{replay_buffer_cls!r:.99}. Pass TensorDictReplayBuffer or one of yours."
        )


def _options(remote_config: Any) -> dict[str, Any]:
    """The options of the actor; it reserves nothing where nothing is said."""
    if not isinstance(remote_config, Mapping | None):
        raise TypeError(
            "remote_config must be options of a Ray actor by name, as {'num_cpus': 1}: got "
            f"{remote_config!r:.99}."
        )
    config = {"num_cpus": 0, **(remote_config or {})}
    wanted_by(config)  # refuses amounts that are no numbers
    return config


def make_buffer(kind: type[ReplayBuffer], given: Mapping[str, Any]) -> ReplayBuffer:
    """Make a shared buffer; called in the actor."""
    parts = dict(given)
    for name in _MADE_THERE:
        if isinstance(parts.get(name), type) or _is_maker(parts.get(name)):
            parts[name] = parts[name]()
    return kind(shared=True, **parts)


def _is_maker(part: Any) -> bool:
    return isinstance(part, functools.partial) or type(part).__name__ in ("function", "method")
