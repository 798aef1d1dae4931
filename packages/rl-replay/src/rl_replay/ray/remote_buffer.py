"""A buffer on another machine: blocks of rows go there and come back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.ray.parcel import unwrapped, wrapped
from rl_replay.ray.server import BufferFacts, Counts, StorageFacts
from rl_slabs.internals import positive
from rl_tensordict import as_key, as_tuple, find

_PAUSE_S = 0.02
_PRIORITY_KEYS = (keys.ROW, keys.STORAGE_ID, (keys.INDEX,), keys.SLICE_IDS, keys.MASK)

Asked = tuple[int | None, bool]
"""The size of a batch, and whether to tell what is known about it."""


class RemoteBuffer:
    """The verbs of a buffer in an actor on another machine.

    A call waits for its answer, which also says how many rows there are; batches may be asked for
    ahead of time. Those were drawn before what others have written since; a write from here drops
    them.
    """

    first_rows_timeout: float = 0.0

    def __init__(self, handle: Any, facts: BufferFacts, *, ahead: int, timeout_s: float) -> None:
        import ray

        self._ray, self._handle, self._facts = ray, handle, facts
        self._depth, self._timeout_s = ahead, timeout_s
        self.batch_size = facts.batch_size
        self._ahead: deque[tuple[Asked, Any]] = deque()  # references to batches
        self._lock = threading.RLock()
        self._counts: Counts | None = None

    @property
    def storage(self) -> StorageFacts:
        """What is known of the storage."""
        return self._facts.storage

    def __len__(self) -> int:
        return self._known().size

    @property
    def write_count(self) -> int:
        """Rows ever written, as the last answer said."""
        return self._known().written

    def write(self, name: str, *args: Any) -> Any:
        """Call a method that changes what is drawn afterwards."""
        with self._lock:
            self._ahead.clear()
            return self.read(name, *args)

    def read(self, name: str, *args: Any) -> Any:
        """Call a method, and wait for what it returns."""
        reference = self._handle.call.remote(name, *(wrapped(one) for one in args))
        result, self._counts = self._get(reference)
        return unwrapped(result)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Send the priorities of sampled rows, and by what the rows are known."""
        key = as_tuple(self._facts.priority_key)
        keys.require(data, as_key(key))
        names = [as_key(one) for one in (*_PRIORITY_KEYS, key) if find(data, one) is not None]
        self.write("update_tensordict_priority", data.select(*names))

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draw a batch, or take one that was asked for ahead of time."""
        limit_s = self.first_rows_timeout if timeout is None else timeout
        if limit_s and not len(self):
            self.wait_until(1, limit_s)
        if batch_size is not None:
            positive(batch_size, "batch_size")
        batch, info, _ = self._next_batch(batch_size, return_info)
        return (batch, info) if return_info else batch

    def __iter__(self) -> Iterator[Any]:
        is_last = False
        while not is_last:
            batch, _, is_last = self._next_batch(None, False)
            yield batch

    def wait_until(self, rows: int, timeout: float | None = None) -> None:
        """Ask again and again until there are so many rows."""
        if rows > self.storage.max_size:
            raise ValueError(f"the buffer never holds {rows} rows, only {self.storage.max_size}.")
        end = None if timeout is None else time.monotonic() + timeout
        while (counts := self._refreshed()).size < rows:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(
                    f"waited {timeout} s for {rows} rows and got {counts.size}: is anyone writing?"
                )
            time.sleep(_PAUSE_S)

    def _next_batch(self, size: int | None, with_info: bool) -> tuple[Any, Any, bool]:
        asked = size if size is not None else self.batch_size, with_info
        with self._lock:
            if self._ahead and self._ahead[0][0] != asked:
                self._ahead.clear()
            while len(self._ahead) < self._depth + 1:
                self._ahead.append((asked, self._handle.next_batch.remote(*asked)))
            reference = self._ahead.popleft()[1]
        try:
            rows, info, is_last, self._counts = self._get(reference)
        except BaseException:
            with self._lock:
                self._ahead.clear()
            raise
        return unwrapped(rows), info, is_last

    def _known(self) -> Counts:
        return self._refreshed() if self._counts is None else self._counts

    def _refreshed(self) -> Counts:
        counts: Counts = self._get(self._handle.counts.remote())
        self._counts = counts
        return counts

    def _get(self, reference: Any) -> Any:
        return answer(self._ray, reference, self._timeout_s, self._facts.node)


def answer(ray: Any, reference: Any, timeout_s: float, node: str = "") -> Any:
    """What an actor of a buffer answers; its own errors as it raised them."""
    errors = ray.exceptions
    try:
        return ray.get(reference, timeout=timeout_s)
    except errors.GetTimeoutError:
        raise TimeoutError(
            f"the replay buffer's actor did not answer within {timeout_s:g} s: is its machine busy "
            "or cut off? `ray status` tells; timeout_s= gives it longer."
        ) from None
    except errors.RayTaskError as error:
        raise error.cause from error
    except errors.RayError as error:
        place = f" on node {node[:8]}" if node else ""
        raise ConnectionError(
            f"the replay buffer's actor{place} is gone ({type(error).__name__}), and with it its "
            "rows, unless a process on its machine holds them still: make a new one, and load what "
            "dumps() kept."
        ) from error
