"""Supervised worker processes: each makes one object and answers calls to its methods."""

from rl_workers.channel import Channel
from rl_workers.errors import (
    CallOutOfOrder,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    WorkerTraceback,
)
from rl_workers.exceptions import Failure
from rl_workers.pickling import Portable
from rl_workers.pool import WorkerPool
from rl_workers.start_methods import StartMethod, context_of

__all__ = [
    "CallOutOfOrder",
    "Channel",
    "Failure",
    "Portable",
    "StartMethod",
    "WorkerDied",
    "WorkerError",
    "WorkerPool",
    "WorkerTimeout",
    "WorkerTraceback",
    "context_of",
]
