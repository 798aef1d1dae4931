"""The storages of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.buffer.indexing import positions_of
from rl_replay.ensembles.members import Members
from rl_replay.storages import Storage
from rl_transforms import Transform

TransformLike = Transform | Callable[[Any], Any] | None


class StorageEnsemble(Members[Storage]):
    """The storages of several buffers; it is read by buffer number and row.

    Args:
        *storages: One for each buffer.
        transforms: A transform for the samples of each, or None.

    Raises:
        ValueError: No storage, or more or fewer transforms than storages.
        TypeError: A member that is no storage.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from rl_replay import LazyTensorStorage
        >>> storages = StorageEnsemble(LazyTensorStorage(5), LazyTensorStorage(9))
        >>> for storage in storages:
        ...     _ = storage.extend(TensorDict({"a": torch.arange(3)}, [3]))
        >>> where = TensorDict({"buffer_ids": torch.tensor([1, 1]), "index": torch.tensor([0, 2])})
        >>> [(number, rows["a"].tolist()) for number, rows in storages[where]]
        [(1, [0, 2])]
    """

    _kind = Storage

    def __init__(
        self, *storages: Storage, transforms: Sequence[TransformLike] | None = None
    ) -> None:
        super().__init__(*storages)
        self.transforms = list(transforms) if transforms is not None else [None] * len(storages)
        if len(self.transforms) != len(storages):
            raise ValueError(
                f"{len(self.transforms)} transforms for {len(storages)} storages: give one for "
                "each, or None."
            )

    def chosen(self, places: list[int]) -> Self:
        """An ensemble of some storages, with their transforms."""
        return type(self)(
            *(list(self)[place] for place in places),
            transforms=[self.transforms[place] for place in places],
        )

    def __getitem__(self, index: Any) -> Any:
        """A storage, an ensemble of some, or the rows that a sample came from.

        A sample, with its buffer ids and `"index"`, gives a list of buffer number and rows `[n]`,
        one for each buffer that it has rows of.
        """
        if isinstance(index, TensorDictBase):
            return self._rows_of(index)
        return super().__getitem__(index)

    def _rows_of(self, sample: TensorDictBase) -> list[tuple[int, Any]]:
        flat = sample.reshape(-1)
        numbers = flat.get(keys.BUFFER_IDS, None)
        if numbers is None:
            numbers = keys.require(flat, keys.BUFFER_IDS[-1])
        index = keys.require(flat, keys.INDEX)
        found = []
        for number in numbers.unique().tolist():
            storage = self[number]
            there = positions_of(storage, index[numbers == number])
            found.append((number, storage.read(there)))
        return found
