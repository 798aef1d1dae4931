"""Checkpointers that keep every observation once."""

from __future__ import annotations

from collections.abc import Sequence

from rl_replay.checkpointers.checkpointer import StorageCheckpointerBase
from rl_replay.compact.forms import InArchive, names_apart
from rl_tensordict import NestedKey


class FlatStorageCheckpointer(StorageCheckpointerBase):
    """Keeps observations once, trajectory after trajectory, in the data of the dump.

    A leaf that is at the root and under `"next"` is kept once for each step, and once more for the
    end of each trajectory. That the next value of a row is the value of the next row is checked
    bit for bit for every row that continues another one; rows that differ are kept with
    both. Nothing is assumed of done flags: trajectories are those of the links, and what comes back
    is bitwise what was stored, in the same places, with cursor, age and row ids.

    Args:
        done_keys: Leaves that are kept for every step in any case, by their last names; none unless
            given: flags that repeat are kept once too.
        reward_keys: Further ones.

    Example:
        >>> import tempfile
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> one, two = (ReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2))
        >>> for buffer in (one, two):
        ...     buffer.storage.checkpointer = FlatStorageCheckpointer()
        >>> _ = one.extend(trajectories([3, 4]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     one.dumps(folder)
        ...     two.loads(folder)
        >>> bool((one[:] == two[:]).all())
        True
    """

    _nested = False

    def __init__(
        self,
        done_keys: Sequence[NestedKey] | None = None,
        reward_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self.form = InArchive(self._nested, names_apart(done_keys, reward_keys))


class NestedStorageCheckpointer(FlatStorageCheckpointer):
    """Keeps what `FlatStorageCheckpointer` keeps, with the offsets of nested tensors.

    Values and offsets of each leaf make a jagged tensor whose rows are trajectories.

    Args:
        done_keys: As there.
        reward_keys: As there.

    Example:
        >>> from rl_replay import LazyTensorStorage
        >>> storage = LazyTensorStorage(9)
        >>> storage.checkpointer = NestedStorageCheckpointer()
    """

    _nested = True
