"""Attributes and methods of the environments of a batched one, in this process or in others."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rl_workers import WorkerPool

CALLS = "calls"  # in the place of a method, which stays in its worker


def is_method(found: Any) -> bool:
    """Whether an attribute is to be called where its environment is; modules are values."""
    return inspect.isroutine(found) or isinstance(found, partial)


def call_each(methods: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Call a method of each environment with the same arguments."""
    return [method(*args, **kwargs) for method in methods]


def attributes_of_workers(outer: str, pool: WorkerPool, name: str) -> Any:
    """Get an attribute of each environment in the workers, or one function that calls them all."""
    replies = pool.call_all("attributes", [(outer, name)] * len(pool))
    found = [one for reply in replies for one in reply]
    return partial(_call_workers, pool, name) if found[0] == (CALLS,) else [one for (one,) in found]


def _call_workers(pool: WorkerPool, name: str, *args: Any, **kwargs: Any) -> list[Any]:
    replies = pool.call_all("call_methods", [(name, args, kwargs)] * len(pool))
    return [one for reply in replies for one in reply]


def updated(
    held: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Arguments of each environment with some replaced."""
    return [{**old, **new} for old, new in zip(held, given, strict=True)]


class RemoteEnv:
    """One environment of a `ParallelEnv`: attributes are read and methods called in its process.

    A method that steps it goes unseen by the `ParallelEnv`: reset that one afterwards.
    """

    def __init__(self, pool: WorkerPool, process: int, place: int) -> None:
        self._pool, self._process, self._place = pool, process, place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        at = (self._process, "attributes", type(self).__name__, name, self._place)
        (found,) = self._pool.call(*at)
        return partial(self._call, name) if found == (CALLS,) else found[0]

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        call = (self._process, "call_methods", name, args, kwargs, self._place)
        return self._pool.call(*call)[0]

    def __repr__(self) -> str:
        return f"RemoteEnv({self._place} of process {self._process})"
