"""Samplers of single rows: uniform, or each row once an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rl_replay.edges import edge
from rl_replay.samplers.sampler import Sampler
from rl_tensordict import CPU
from rl_tensordict.arguments import check_state, shown

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class SamplerWithoutReplacement(Sampler):
    """Returns every row once an epoch, in another order each time.

    A new epoch begins when rows were written or dropped since the current one began.

    Args:
        drop_last: Leave out the last batch of an epoch if it is short.
        shuffle: Use a random order, rather than from the oldest row to the newest.

    Example:
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> sampler = SamplerWithoutReplacement(shuffle=False)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=3)
        >>> _ = buffer.extend(torch.arange(5))
        >>> [batch.tolist() for batch in buffer]
        [[0, 1, 2], [3, 4]]
    """

    proven: ClassVar[bool] = True

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch with the next batch."""
        self.ran_out = False
        self._order = torch.empty(0, dtype=torch.int64, device=CPU)
        self._place = 0
        self._seen: tuple[Any, ...] = ()

    @edge
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Take the next rows of the epoch.

        Raises:
            ValueError: The storage is empty, or an epoch has no whole batch with `drop_last`.
        """
        window = storage.ring.window()
        total, seen = len(window), (window.first, window.counts)
        if not total:
            raise ValueError("there are no rows to sample yet: extend the buffer first.")
        if self.drop_last and batch_size > total:
            raise ValueError(
                f"drop_last leaves nothing of {total} rows in batches of {batch_size}: take "
                "smaller batches, or drop_last=False."
            )
        if seen != self._seen or self._place >= len(self._order):
            self._begin(total, seen)
        places = self._order[self._place : self._place + batch_size]
        self._place += batch_size
        left = len(self._order) - self._place
        self.ran_out = left < (batch_size if self.drop_last else 1)
        if self.ran_out:
            self._place = len(self._order)
        return window.numbers(places), {}

    def state_dict(self) -> dict[str, Any]:
        """The remaining rows of the epoch."""
        return {
            "order": self._order,
            "place": self._place,
            "seen": self._seen,
            "ran_out": self.ran_out,
        }

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the epoch of another sampler.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It lacks entries, as the state of a sampler of another kind.
        """
        check_state(type(self).__name__, state, ("order", "place", "seen", "ran_out"))
        self._order, self._place = torch.as_tensor(state["order"], device=CPU), int(state["place"])
        self._seen = tuple(tuple(part) for part in state["seen"])
        self.ran_out = bool(state["ran_out"])

    def _begin(self, total: int, seen: tuple[Any, ...]) -> None:
        self._place, self._seen = 0, seen
        if self.shuffle:
            self._order = torch.randperm(total, generator=self.generator, device=CPU)
        else:
            self._order = torch.arange(total, device=CPU)

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"


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

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw rows.

        Raises:
            ValueError: The storage is empty.
            TypeError: It is no storage.
        """
        try:
            session = storage.session
        except AttributeError:
            raise TypeError(f"storage: expected a storage, got {shown(storage)}.") from None
        return session.ring.window().draw(batch_size, generator=self.generator), {}
