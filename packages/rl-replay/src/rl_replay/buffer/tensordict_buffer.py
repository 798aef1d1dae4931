"""The replay buffer of tensordicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_layout import keys
from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.data.dicts import RowDict
from rl_replay.data.refilled_arrays import RefilledArrays
from rl_replay.edges import edge
from rl_replay.samplers import Sampler
from rl_replay.storages import ListStorage, TensorStorage
from rl_replay.writers import TensorDictRoundRobinWriter
from rl_tensordict import NestedKey, as_key, as_tuple, find


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer that takes tensordicts only, and whose rows carry their index.

    Args:
        priority_key: Where priorities are read from, by samplers that have them.
        **parts: As for `ReplayBuffer`.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=3)
        >>> _ = buffer.extend(trajectories([3, 2]))
        >>> buffer[:]["index"]
        tensor([0, 1, 2, 3, 4])
    """

    _writer_class = TensorDictRoundRobinWriter
    _info_in_sample = True

    def __init__(self, *, priority_key: NestedKey = "td_error", **parts: Any) -> None:
        super().__init__(**parts)
        self.priority_key = priority_key
        self._refilled = RefilledArrays()

    @property
    def priority_key(self) -> NestedKey:
        """Where priorities are read from, by samplers that have them."""
        return self._priority_key

    @priority_key.setter
    def priority_key(self, key: NestedKey) -> None:
        self._priority_key = as_key(as_tuple(key))
        self.sampler.priority_key = self._priority_key

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchange the sampler; see `ReplayBuffer.set_sampler`.

        Args:
            sampler: The new one.
        """
        former = super().set_sampler(sampler)
        sampler.priority_key = self._priority_key
        return former

    @edge
    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of sampled rows; does nothing where the sampler has none.

        Rows that were overwritten since they were sampled are passed over, and counted in
        `stats()` under "stale_priorities". A sample says which storage it is of, and one of another
        storage is refused, that of a dump's buffer before `loads` too; an index alone says nothing.

        Args:
            data: A sample with a leaf under `priority_key`, `[N]` or `[N, ...]`: of several numbers
                a row the sampler's `reduction` makes one. Rows of padding are passed over.

        Raises:
            KeyError: Neither row ids nor an index, or no priorities.
            ValueError: A priority that is negative or not finite, or a sample of another buffer.

        Example:
            >>> from rl_replay import LazyTensorStorage, PrioritizedSampler
            >>> buffer = TensorDictReplayBuffer(
            ...     storage=LazyTensorStorage(9), sampler=PrioritizedSampler(9, 0.7, 0.5)
            ... )
            >>> _ = buffer.extend({"observation": torch.rand(5, 3)})
            >>> sample = buffer.sample(4)
            >>> sample["td_error"] = torch.rand(4)
            >>> buffer.update_tensordict_priority(sample)
        """
        sampler, shape = self.sampler, data.batch_size
        flat, rows = data if len(shape) == 1 else data.reshape(-1), shape.numel()
        priority = sampler.reduce(keys.require(flat, self._priority_key), rows)
        drawn_from, row_ids = find(flat, keys.STORAGE_ID), find(flat, keys.ROW)
        if drawn_from is not None:
            self.storage.identity.require(drawn_from)
        if row_ids is None:
            self.update_priority(keys.require(flat, keys.INDEX), priority)
            return
        if drawn_from is None and sampler.weighs_rows:
            raise ValueError(
                f"the rows do not say by {keys.STORAGE_ID} which buffer they are of, as each sample"
                " drawn by priorities does: give such a sample, or an index without row ids."
            )
        slice_ids = find(flat, keys.SLICE_IDS)
        if (mask := find(flat, keys.MASK)) is not None:
            row_ids, priority = row_ids[mask], priority[mask]
            slice_ids = None if slice_ids is None else slice_ids[mask]
        row_ids, priority = sampler.by_slice(row_ids, priority, slice_ids)
        with self._parts.local.lock:
            sampler.update_priority(self.storage, row_ids.cpu(), priority)

    def add(self, data: TensorDictBase | Mapping[str, Any]) -> Any:
        """Store one row; see `ReplayBuffer.add`.

        Args:
            data: A tensordict, or a dict of arrays and numbers, as a loop over an environment has
                them. Of a dict rewards, done flags and `is_init` get the singleton dimension that
                they have in tensordicts, rewards torch's default dtype, and flags, which may be
                0 and 1 of any dtype, bool.

        Example:
            >>> from rl_replay import LazyTensorStorage
            >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
            >>> step = {"reward": 1.0, "done": False}
            >>> _ = buffer.add({"observation": torch.zeros(3), "action": 2, "next": step})
            >>> buffer[:]["next", "reward"].shape, buffer[:]["action"].shape
            (torch.Size([1, 1]), torch.Size([1]))
        """
        if type(data) is TensorDict:  # needs no conversion
            return super().add(data)
        with self._parts.local.lock:
            return super().add(self._as_rows(data, self.storage.ndim - 1, "row", "[]"))

    def extend(self, data: TensorDictBase | Mapping[str, Any] | list[Any]) -> torch.Tensor:
        """Store several rows; see `ReplayBuffer.extend`.

        Args:
            data: A tensordict, a dict of arrays that have the dimensions of the storage in front,
                or a list of what `add` takes.
        """
        if type(data) is TensorDict:
            return super().extend(data)
        if isinstance(data, list):
            dims = self.storage.ndim - 1
            return super().extend([self._tensordict_of(one, dims) for one in data])
        with self._parts.local.lock:
            return super().extend(self._as_rows(data, self.storage.ndim, "leaves", "[rows]"))

    def _as_rows(self, data: Any, dims: int, what: str, size: str) -> Any:
        """A dict as a storage or transforms take it; a tensordict as it is."""
        if type(data) is dict and data:
            if self._refilled.left:
                self._refilled.see(data)
            if self._reads_dicts:
                return RowDict(data, dims)
        made = self._tensordict_of(data, dims)
        if not isinstance(made, TensorDictBase):
            raise TypeError(
                f"expected a tensordict or a dict of arrays, got {type(data).__name__}: wrap it, "
                f"TensorDict({what}, batch_size={size}), or use ReplayBuffer."
            )
        return made

    @property
    def _reads_dicts(self) -> bool:
        """Whether dicts go to the storage as they are."""
        parts = self._parts
        plain = not parts.transform.changes and not parts.checks_writes
        return plain and isinstance(parts.storage, TensorStorage)

    def _tensordict_of(self, data: Any, dims: int) -> Any:
        """A dict as a tensordict with so many batch dimensions; anything else as it is."""
        if is_tensor_collection(data) or not isinstance(data, Mapping) or not data:
            return data
        made = RowDict(data, dims).tensordict()
        # an environment may refill its arrays, and a list keeps references
        return made.clone() if isinstance(self.storage, ListStorage) else made
