"""A cluster of Ray: joined, asked for resources, and what is sent to its actors."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

CONNECT_S = 5.0
"""How long a cluster may take to answer."""

# HTTP/2, which gRPC speaks: what a client begins with, and the kind of frame a server begins with
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEAD, _SETTINGS = 9, 4

Config = Mapping[str, Any]


def import_ray(extra: str, instead: str) -> Any:
    """Ray's module; without it, an error that says what to install and what to use instead."""
    try:
        import ray
    except ModuleNotFoundError as error:
        msg = f"Ray is not installed: pip install '{extra}[ray]'. {instead}"
        raise ModuleNotFoundError(msg, name="ray") from error
    return ray


def join_cluster(ray: Any, init_config: Config | None) -> None:
    """Join the session of this process, or begin one."""
    given: Any = init_config or {}
    if not isinstance(given, Mapping):
        msg = f"ray_init_config must be arguments of ray.init by name: got {given!r:.99}."
        raise TypeError(msg)
    if ray.is_initialized():
        return
    config = {"include_dashboard": False, **given}
    address = config.get("address")
    if isinstance(address, str) and ":" in address:
        _require_answer(address)
        config.pop("include_dashboard")
    ray.init(**config)


def _require_answer(address: str) -> None:
    # Ray itself waits for minutes where a port takes connections and is no cluster
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with contextlib.closing(socket.create_connection((host, int(port)), CONNECT_S)) as end:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("0", "false"):
                _require_grpc(end)
    except (OSError, ValueError) as error:
        msg = (
            f"no Ray cluster answers at {address!r} ({error}): start one there by `ray start "
            "--head`, or leave the address out of ray_init_config for one on this machine."
        )
        raise ConnectionError(msg) from error


def _require_grpc(end: socket.socket) -> None:
    end.sendall(_PREFACE)
    head = b""
    while len(head) < _FRAME_HEAD:
        more = end.recv(_FRAME_HEAD - len(head))
        if not more:
            raise ConnectionError("what is there hangs up")
        head += more
    if head[3] != _SETTINGS:
        raise ConnectionError("what is there does not speak gRPC")


def configs_of(remote_configs: Config | Sequence[Config] | None, count: int) -> list[Config]:
    """The options of each actor; one CPU where nothing is said."""
    if remote_configs is None or isinstance(remote_configs, Mapping):
        given: list[Any] = [remote_configs or {}] * count
    else:
        given = list(remote_configs) if isinstance(remote_configs, Sequence) else []
    if len(given) != count or not all(isinstance(one, Mapping) for one in given):
        msg = (
            f"remote_configs must be options of Ray actors, as {{'num_cpus': 1}}, or a list of "
            f"{count}, one for each worker: got {remote_configs!r:.200}."
        )
        raise ValueError(msg)
    return [{"num_cpus": 1, **one} for one in given]


def pickled(cloudpickle: Any, make: Any, parts: Mapping[str, Any], owner: str) -> bytes:
    """What an actor is made by; where it cannot be pickled, the part that is why is named."""
    try:
        found: bytes = cloudpickle.dumps(make)
    except Exception:
        for name, part in parts.items():
            _require_picklable(cloudpickle, name, part, owner)
        raise
    return found


def _require_picklable(cloudpickle: Any, name: str, part: Any, owner: str) -> None:
    try:
        cloudpickle.dumps(part)
    except Exception as error:
        called = getattr(part, "__qualname__", type(part).__name__)
        msg = (
            f"{name} of {owner}, {called}, cannot be pickled on its way to an actor "
            f"({type(error).__name__}: {error}): make what it holds inside the function."
        )
        raise TypeError(msg) from error


def wanted_by(config: Config) -> dict[str, float]:
    """The resources that one actor reserves.

    Raises:
        TypeError: `resources` are no amounts by name, or an amount is no number.
        ValueError: an amount is negative.
    """
    further = config.get("resources") or {}
    if not isinstance(further, Mapping):
        msg = (
            f"resources of an actor must be amounts by name, as {{'far': 1}}: got {further!r:.99}."
        )
        raise TypeError(msg)
    named = {"CPU": config.get("num_cpus"), "GPU": config.get("num_gpus")}
    all_of_them = {**named, **further}
    return {name: _amount(name, one) for name, one in all_of_them.items() if one}


def _amount(name: str, amount: Any) -> float:
    if not isinstance(amount, Real):
        msg = f"an actor reserves a number of {name}, as 1 or 0.5: got {amount!r:.99}."
        raise TypeError(msg)
    if amount < 0:
        msg = f"an actor reserves 0 or more {name}: got {amount}."
        raise ValueError(msg)
    return float(amount)


def require_resources(ray: Any, configs: Sequence[Config]) -> None:
    """Raise where the cluster can never hold these actors; Ray would wait without end."""
    nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    total: dict[str, float] = {}
    for config in configs:
        wanted = wanted_by(config)
        if not any(all(node.get(n, 0.0) >= a for n, a in wanted.items()) for node in nodes):
            msg = (
                f"a worker asks for {_text(wanted)}, which none of the {len(nodes)} nodes has: "
                f"they have {'; '.join(_text(_counted(node)) for node in nodes)}. Ask for less in "
                "remote_configs, or add a node by `ray start --address=...`."
            )
            raise ValueError(msg)
        for name, amount in wanted.items():
            total[name] = total.get(name, 0.0) + amount
    there = ray.cluster_resources()
    lacking = {name: amount for name, amount in total.items() if amount > there.get(name, 0.0)}
    if lacking:
        msg = (
            f"{len(configs)} workers ask for {_text(total)} together, and the cluster has "
            f"{_text({name: there.get(name, 0.0) for name in lacking})}: make fewer, ask for less "
            "in remote_configs, begin with some by min_workers, or add nodes by `ray start "
            "--address=...`."
        )
        raise ValueError(msg)


def _counted(node: Mapping[str, float]) -> dict[str, float]:
    """What people count, without memory and the names of nodes."""
    ours = ("memory", "object_store_memory")
    return {name: n for name, n in node.items() if ":" not in name and name not in ours}


def _text(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "nothing"
