"""Fuzzed parts of rl-workers that have no public name: pools, channels and pickled functions."""

from __future__ import annotations

import socket
from typing import Any

from fuzz_pools import Pool, each

from rl_workers import Channel, Portable, WorkerPool


def pool(*pending: int) -> WorkerPool:
    """Two lists in processes of their own; some have a call pending."""
    made = WorkerPool([list, list], signals=["clear"], start_method="fork", timeout_s=2.0)
    for index in pending:
        made.begin(index, "__len__")
    return made


def channel() -> Channel:
    """A channel that has a message waiting."""
    here, there = Channel.pair()
    there.send(b"message")
    here.limit(1.0)
    return here


CALLS: list[tuple[str, Any]] = [
    ("WorkerPool()", pool),
    ("WorkerPool() at work", lambda: pool(0, 1)),
    ("Channel()", channel),
    ("Channel.pair", lambda: Channel.pair),
    ("Portable()", lambda: Portable(list)),
]
POOLS: dict[str, Pool] = {
    "make": [lambda: [list], lambda: [dict, list]],
    "signals": [list, lambda: ["clear"]],
    "start_method": each("fork"),
    "preload": each((), ("rl_workers",)),
    "timeout_s": each(1.0, 2, None),
    "start_timeout_s": each(2.0),
    "num_threads": each(1, None),
    "index": each(0, 1),
    "name": each("clear", "__len__", "append", "worker"),
    "numbers": each(1, 7),
    "arguments": [lambda: [(), ()], lambda: [(1,), (2,)], lambda: None],
    "args": each(1, "a"),
    "message": each(b"bytes", b""),
    "end": [lambda: socket.socketpair()[0]],
    "function": [lambda: list, lambda: len],
    "makes": each("a list"),
    "who": each("worker 0"),
}
SKIP = {
    "Portable.__call__": "calls the function that it was given, whose errors are the answer",
    "WorkerPool": "starts a server of forks where no method is named, which takes seconds",
}
