"""Replay buffers with a sampler that draws by priority."""

from __future__ import annotations

from typing import Any

import torch

from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.buffer.tensordict_buffer import TensorDictReplayBuffer
from rl_replay.priorities.reduction import PriorityReduction
from rl_replay.samplers import PrioritizedSampler
from rl_replay.storages import ListStorage, Storage
from rl_tensordict import NestedKey


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer whose rows are drawn in proportion to their priorities.

    The same as `ReplayBuffer(sampler=PrioritizedSampler(storage.max_size, alpha, beta))`.

    Args:
        alpha: How much priorities matter: 0 draws uniformly.
        beta: How far the weights of samples make up for it: 1 makes means over samples unbiased.
        eps: What is added to each priority.
        dtype: The dtype of weights.
        storage: Holds the rows; a list of 1000 objects unless given.
        **parts: As for `ReplayBuffer`.

    Raises:
        ValueError: A negative alpha, beta or eps.

    Example:
        >>> buffer = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, batch_size=2)
        >>> index = buffer.extend([1, 2, 3])
        >>> buffer.update_priority(index, torch.tensor([0.0, 0.0, 5.0]))
        >>> batch, info = buffer.sample(return_info=True)
        >>> batch, info["priority_weight"]
        (tensor([3, 3]), tensor([1., 1.]))
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Storage | None = None,
        **parts: Any,
    ) -> None:
        storage = ListStorage(1000) if storage is None else storage
        sampler = PrioritizedSampler(storage.max_size, alpha, beta, eps, dtype)
        super().__init__(storage=storage, sampler=sampler, **parts)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A replay buffer of tensordicts whose rows are drawn in proportion to their priorities.

    Samples carry `"priority_weight"`; a loss that writes `"td_error"` into the sample is followed
    by `update_tensordict_priority(sample)`. Rows that are stored with a priority begin with it.

    Args:
        alpha: How much priorities matter: 0 draws uniformly.
        beta: How far the weights of samples make up for it: 1 makes means over samples unbiased.
        priority_key: Where priorities are read from.
        eps: What is added to each priority.
        storage: Holds the rows; a list of 1000 objects unless given.
        reduction: How priorities with more dimensions than rows become one a row: "max", "min",
            "median" or "mean".
        **parts: As for `ReplayBuffer`.

    Raises:
        ValueError: A negative alpha, beta or eps, or an unknown reduction.

    Example:
        >>> from rl_replay import LazyTensorStorage
        >>> buffer = TensorDictPrioritizedReplayBuffer(
        ...     alpha=0.7, beta=0.9, storage=LazyTensorStorage(100), batch_size=4
        ... )
        >>> _ = buffer.extend({"observation": torch.rand(5, 3), "td_error": torch.rand(5)})
        >>> sample = buffer.sample()
        >>> sample["priority_weight"].max()
        tensor(1.)
        >>> sample["td_error"] = torch.rand(4)
        >>> buffer.update_tensordict_priority(sample)
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: NestedKey = "td_error",
        eps: float = 1e-8,
        storage: Storage | None = None,
        reduction: PriorityReduction = "max",
        **parts: Any,
    ) -> None:
        storage = ListStorage(1000) if storage is None else storage
        sampler = PrioritizedSampler(storage.max_size, alpha, beta, eps, reduction=reduction)
        super().__init__(priority_key=priority_key, storage=storage, sampler=sampler, **parts)
