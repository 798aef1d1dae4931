"""A collector whose workers are actors of Ray, on this machine or on others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rl_collect.arguments import check_count
from rl_collect.multi.carrier import Carrier
from rl_collect.multi.multi_collector import MultiCollector
from rl_collect.multi.options import WorkerMakers, check_picklable
from rl_collect.multi.remote_workers import RemoteWorkers
from rl_collect.ray.actors import Actors
from rl_tensordict.arguments import as_integer
from rl_workers.ray_cluster import (
    Config,
    configs_of,
    import_ray,
    join_cluster,
    pickled,
    require_resources,
)


class RayCollector(MultiCollector):
    """Plays environments in actors of Ray; otherwise as `MultiCollector`.

    Workers on this machine write their batches into shared memory and read new weights there. One
    on another machine sends each batch as one block, and fetches the newest weights when it begins
    a batch; it skips versions that it had no time for. A session of Ray that this collector begins
    lasts until the program ends, or `ray.shutdown()`.

    Args:
        create_env_fn: a function for each worker, which makes its environment there; or one
            function and `num_collectors`.
        policy: as for `Collector`; each worker has a copy.
        sync: return one batch of all workers together, otherwise each worker's as it comes.
        num_collectors: how many workers, where `create_env_fn` is one function.
        ray_init_config: arguments of `ray.init`, where this process has no session yet. One with
            an "address" joins that cluster; without, the session is on this machine.
        remote_configs: options of the actors, `num_cpus`, `num_gpus`, `resources`,
            `scheduling_strategy` and so on: for all, or one mapping for each.
        ports: TCP ports of this machine, of which the first free one takes the batches of workers
            on other machines, such as `range(20_000, 20_010)`; any free one where None.
        options: what else `MultiCollector` takes but `mp_start_method`, and `Collector`.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: no cluster answers at the address.
        OSError: none of the `ports` is free.
        TypeError: something that workers need cannot be pickled; or an unknown option.
        ValueError: the cluster has fewer resources than the workers ask for, a policy is on a
            device that they do not reserve, a buffer in the memory of this machine is to be written
            from another one; or as for `MultiCollector`.

    Example:
        >>> issubclass(RayCollector, MultiCollector)
        True
    """

    def __init__(  # noqa: PLR0913 - four are the field's
        self,
        create_env_fn: WorkerMakers,
        policy: Any = None,
        *,
        sync: bool = False,
        num_collectors: int | None = None,
        ray_init_config: Config | None = None,
        remote_configs: Config | Sequence[Config] | None = None,
        ports: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        if "mp_start_method" in options:
            msg = "actors have no mp_start_method: leave it out, or use MultiCollector."
            raise TypeError(msg)
        if num_collectors is not None:
            check_count(num_collectors, 1, "num_collectors")
        self._ray_init_config, self._remote_configs = ray_init_config, remote_configs
        self._ports = _checked(ports)
        super().__init__(create_env_fn, policy, sync=sync, num_workers=num_collectors, **options)

    def _carrier(self, make: list[Callable[[], Any]]) -> Carrier:
        options, buffer = self.options, self.options.replay_buffer
        check_picklable(self.policy, None)
        configs = configs_of(self._remote_configs, len(make))
        _check_devices(self.policy, options.options, configs)
        ray = import_ray(
            "rl-collect",
            "On one machine MultiSyncCollector and MultiAsyncCollector do without it.",
        )
        made = [_pickled(index, one, ray.cloudpickle) for index, one in enumerate(make)]
        join_cluster(ray, self._ray_init_config)
        require_resources(ray, configs[: options.min_workers])
        reaches_all = getattr(buffer, "reaches_other_nodes", False)
        needs_memory = options.workers_write and not reaches_all
        actors = Actors(made, configs, needs_memory=needs_memory, ports=self._ports)
        return RemoteWorkers(actors, timeout_s=options.timeout_s)


def _checked(ports: Sequence[int] | None) -> Sequence[int]:
    if ports is None:
        return (0,)
    given = [as_integer(one) for one in ports] if isinstance(ports, Iterable) else []
    found = [one for one in given if one is not None and 0 < one < 2**16]
    if not found or len(found) < len(given):
        msg = f"ports must be numbers of TCP ports, as range(20_000, 20_010): got {ports!r}."
        raise ValueError(msg)
    return found


def _pickled(index: int, make: Any, cloudpickle: Any) -> bytes:
    """What makes a worker, for another process."""
    env, policy, options = make.args
    parts = {"create_env_fn": env, "policy": policy, **options}
    # what is pickled once holds no seed for an actor that replaces another: each draws its own
    make = functools.partial(make.func, *make.args)
    return pickled(cloudpickle, make, parts, f"worker {index}")


def _check_devices(policy: Any, options: Mapping[str, Any], configs: Sequence[Config]) -> None:
    """Raise for a device that a worker does not reserve: Ray hides it from the actor."""
    parameter = next(policy.parameters(), None) if isinstance(policy, nn.Module) else None
    said = {name: options.get(name) for name in ("device", "env_device", "policy_device")}
    used = {name: torch.device(one) for name, one in said.items() if one is not None}
    if parameter is not None and used.keys() <= {"env_device"}:
        used["policy"] = parameter.device
    for index, config in enumerate(configs):
        for name, device in used.items():
            if device.type == "cuda" and not config.get("num_gpus"):
                msg = (
                    f"{name} is {device}, and worker {index} reserves no GPU: give remote_configs="
                    f"{{'num_gpus': 1}}, or act on the CPU (policy.cpu(), policy_device='cpu')."
                )
                raise ValueError(msg)
