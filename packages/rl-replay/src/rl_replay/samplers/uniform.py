"""Rows drawn uniformly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rl_replay.edges import edge
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.without_replacement import SamplerWithoutReplacement

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class RandomSampler(Sampler):
    """Draws rows uniformly and with replacement.

    Example:
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=RandomSampler())
        >>> _ = buffer.extend(torch.arange(5))
        >>> buffer.sample(3).shape
        torch.Size([3])
    """

    without_replacement: ClassVar[type[Sampler] | None] = SamplerWithoutReplacement
    proven: ClassVar[bool] = True

    @edge
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw rows.

        Raises:
            ValueError: The storage is empty.
        """
        return storage.ring.window().draw(batch_size, generator=self.generator), {}
