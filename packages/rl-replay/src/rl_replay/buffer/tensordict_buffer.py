"""The replay buffer of tensordicts."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from rl_layout.keys import NestedKey
from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.writers import TensorDictRoundRobinWriter, Writer


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer that takes tensordicts only, and hands rows out with their index.

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

    _known_in_sample = True

    def __init__(self, *, priority_key: NestedKey = "td_error", **parts: Any) -> None:
        self.priority_key = priority_key
        super().__init__(**parts)

    def add(self, data: TensorDictBase) -> Any:
        """Store one row; see `ReplayBuffer.add`."""
        return super().add(_tensordict(data, "TensorDict(row), with batch_size=[],"))

    def extend(self, data: TensorDictBase | list[TensorDictBase]) -> torch.Tensor:
        """Store several rows; see `ReplayBuffer.extend`."""
        return super().extend(data if isinstance(data, list) else _tensordict(data, _WRAP_ROWS))

    def _default_writer(self) -> Writer:
        return TensorDictRoundRobinWriter()


_WRAP_ROWS = "TensorDict(leaves, batch_size=[rows]),"


def _tensordict(data: Any, wrapped: str) -> TensorDictBase:
    if not isinstance(data, TensorDictBase):
        raise TypeError(
            f"expected a tensordict, got {type(data).__name__}: wrap it, {wrapped} "
            "or use ReplayBuffer."
        )
    return data
