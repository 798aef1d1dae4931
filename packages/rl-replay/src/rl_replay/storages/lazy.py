"""Storage in memory that is allocated by the first write."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_replay.shared.files import AnonymousMemory, FileSource
from rl_replay.shared.session import LANES, SharedSession
from rl_replay.storages.private_session import PrivateSession
from rl_replay.storages.row_store import allocate
from rl_replay.storages.storage import Storage
from rl_replay.storages.tensor import Device, TensorStorage
from rl_slabs.internals import positive
from rl_tensordict import NestedKey
from rl_tensordict.arguments import local_device


class LazyTensorStorage(TensorStorage):
    """Rows in memory, or on a device, made for `max_size` rows like the first that are written.

    Args:
        max_size: How many rows, those of all dimensions together; rounded up to whole columns.
        device: Where they live, a device of this machine; "auto" for where the first data are.
        ndim: Its dimensions: 2 for batches `[B, T]`, whose environments become columns.
        lossless: Keep each observation once; a row names the row that holds its next one. True
            takes every leaf that is there under `"next"` too; a list names them, as is needed
            where the next observations are not stored at all.
        lanes: Where it is shared, how many threads and processes may write at a time, 8 unless
            given; with 1 they take turns. The capacity divides over them. A writer fills one after
            the other, the oldest first, and writes no more than one of them holds in one call.

    Raises:
        ValueError: A size or a number of dimensions out of range.
        TypeError: `lossless` is neither a bool nor a list.
        RuntimeError: This machine has no such device.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> storage = LazyTensorStorage(9)
        >>> _ = storage.extend(trajectories([3, 2]))
        >>> len(storage), len(storage.trajectories())
        (5, 2)
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: Device = "cpu",
        ndim: int = 1,
        lossless: bool | Sequence[NestedKey] = False,
        lanes: int | None = None,
    ) -> None:
        Storage.__init__(self, max_size, ndim=ndim)
        if device not in ("auto", None):
            local_device("device", device)
        self.device = device
        self.lanes = None if lanes is None else positive(lanes, "lanes")
        if isinstance(lossless, str) or not isinstance(lossless, bool | Sequence):
            raise TypeError(
                f"lossless is True, False or a list of keys, got {lossless!r}: use [{lossless!r}]."
            )
        self.lossless = lossless if isinstance(lossless, bool) else list(lossless)
        self.session = PrivateSession(int(max_size), allocate)

    def share(self) -> None:
        """Let processes that are given the storage see the same rows, several writing at a time.

        Raises:
            RuntimeError: Rows were written already, where no other process sees them.
            ValueError: Rows on another device than the CPU.
        """
        session, lanes = self.session, self.lanes or LANES
        session.sync()
        if session.is_shared and session.lanes == lanes:
            return
        if session.table is not None:
            raise RuntimeError(
                "rows were written before the storage was shared: share it first, or dump them and "
                "load them."
            )
        if self.device not in ("auto", None) and torch.device(self.device).type != "cpu":
            raise ValueError(f"memory of the CPU can be shared, not that of {self.device}.")
        self.device = "cpu"
        self._share(lanes)

    def _share(self, lanes: int) -> None:
        """Begins a session that writes to files for all processes."""
        former = self.session
        source = former.source if isinstance(former, SharedSession) else self._source()
        once = self.lossless or False
        self.session = SharedSession(former.asked, source, source.files(lanes), once)
        self.session.mark(former.ids, former.ends)

    def _source(self) -> FileSource:
        return AnonymousMemory()
