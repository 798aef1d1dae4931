"""The interface of maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch

K = TypeVar("K")
V = TypeVar("V")


class TensorMap(ABC, Generic[K, V]):
    """A map from batches of keys to batches of values. Derive from it for a map of your own.

    Example:
        >>> import torch
        >>> class Squares(TensorMap[torch.Tensor, torch.Tensor]):
        ...     def clear(self): ...
        ...     def __getitem__(self, item):
        ...         return item * item
        ...     def __setitem__(self, item, value): ...
        ...     def __len__(self):
        ...         return 0
        ...     def contains(self, item):
        ...         return torch.ones_like(item, dtype=torch.bool)
        >>> Squares()[torch.tensor([2, 3])]
        tensor([4, 9])
    """

    @abstractmethod
    def clear(self) -> None:
        """Forgets all keys and values."""

    @abstractmethod
    def __getitem__(self, item: K) -> V:
        """The values of keys; an unknown key is a `KeyError`."""

    @abstractmethod
    def __setitem__(self, item: K, value: V) -> None:
        """Stores the values of keys."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of keys."""

    @abstractmethod
    def contains(self, item: K) -> torch.Tensor:
        """Which keys are there, a bool for each."""

    def __contains__(self, item: K) -> bool:
        return bool(self.contains(item).all())
