"""Where the rows of a buffer live."""

from rl_replay.storages.lazy import LazyTensorStorage
from rl_replay.storages.list import ListStorage
from rl_replay.storages.memmap import LazyMemmapStorage
from rl_replay.storages.storage import Storage
from rl_replay.storages.tensor import TensorStorage

__all__ = [
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "Storage",
    "TensorStorage",
]
