"""Workers of a collector as the group of them sees them: processes of this machine, or actors."""

from __future__ import annotations

from typing import Any, Protocol

from rl_collect.weights.shared_weights import SharedWeights
from rl_workers import WorkerPool


class Carrier(Protocol):
    """Starts workers, each of which holds one object, and carries calls of its methods."""

    # One call is pending at a time in each worker; `wait` and `receive` take the replies. Tensors
    # of batches and weights do not pass through it where `shares_memory` is true.

    @property
    def pids(self) -> list[int]:
        """The number of each worker's process, on its machine."""

    @property
    def pending(self) -> list[str | None]:
        """The pending call of each worker, "starting" if it is not ready yet; else None."""

    def __len__(self) -> int: ...

    def describe(self, index: int) -> str:
        """The worker as messages call it."""

    def shares_memory(self, index: int) -> bool:
        """Whether a worker can attach to the shared memory of this process."""

    def route(self, index: int) -> str:
        """What carries a worker's batches; see `MultiCollector.stats`."""

    def offer_weights(self, weights: SharedWeights | None) -> None:
        """From now on bring these to workers that share no memory, when they need them."""

    def begin(self, index: int, name: str, *args: Any) -> None:
        """Call a method and do not wait; raises `WorkerDied`."""

    def receive(self, index: int, *, timeout_s: float | None = None) -> Any:
        """Wait for the reply; raises `WorkerDied`, `WorkerTimeout`, or what the method raised."""

    def call(self, index: int, name: str, *args: Any) -> Any:
        """Call a method and wait."""

    def wait(self, *, timeout_s: float | None = None) -> list[int]:
        """Wait until workers with a pending call have a reply or are gone; those."""

    def has_reply(self, index: int, *, timeout_s: float) -> bool:
        """Wait until `receive` would not wait; False where that takes too long."""

    def restart(self, index: int) -> None:
        """Replace a worker; its start may be pending afterwards."""

    def close(self, *, timeout_s: float = 5.0) -> None:
        """End all workers; kill the ones that take too long."""


class Processes(WorkerPool):
    """Workers in processes of this machine."""

    def describe(self, index: int) -> str:
        """The worker as messages call it."""
        return f"collector worker {index} (process {self.pids[index]})"

    def shares_memory(self, index: int) -> bool:
        """True: all are on this machine."""
        del index
        return True

    def route(self, index: int) -> str:
        """Shared memory carries all."""
        del index
        return "memory"

    def offer_weights(self, weights: SharedWeights | None) -> None:
        """Nothing: all workers read them in place."""
