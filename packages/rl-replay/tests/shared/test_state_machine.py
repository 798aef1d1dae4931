"""Several handles of one buffer, in any order of writes, against lists of the rows of each lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from rl_replay import LazyMemmapStorage, LazyTensorStorage, Storage
from rl_replay.testing import SharedBufferMachine


class IndexedBuffers(SharedBufferMachine):
    """The index that the writers share keeps its invariants."""

    storages: ClassVar[dict[str, Callable[[int, int, bool], Storage]]] = {
        "memory": lambda size, lanes, once: LazyTensorStorage(size, lanes=lanes, lossless=once),
        "file": lambda size, lanes, once: LazyMemmapStorage(size, lanes=lanes, lossless=once),
    }

    @invariant()
    def shared_index_is_sound(self) -> None:
        if not hasattr(self, "buffers") or not any(self.rows):
            return
        storage = self.buffers[-1].storage
        storage.trajectories().check(storage.back)


IndexedBuffers.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSharedBuffer = pytest.mark.slow(IndexedBuffers.TestCase)
