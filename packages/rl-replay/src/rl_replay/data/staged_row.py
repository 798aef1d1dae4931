"""One row or a few, read from a tensordict or a dict, that are to be written next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict

from rl_replay.data.dicts import DictReader
from rl_slabs import Field
from rl_slabs.internals import TensordictReader, ValidatedLeaves, bits_of, carrier
from rl_tensordict.types import KeyPath


class Readers(NamedTuple):
    """What reads rows that match a schema exactly."""

    tensordicts: TensordictReader | None  # None for trees
    dicts: DictReader


class StagedRows:
    """Reads one row or a few into packed rows of their own, which one copy takes to their place."""

    # Asking numpy for an array of each leaf takes twice as long as one call of torch that copies
    # all of them.

    def __init__(
        self,
        readers: Readers,
        fields: Sequence[Field],
        packed: Mapping[KeyPath, torch.Tensor],
        *,
        has_batch: bool = False,  # whether the packed leaves are `[n, ...]`, of several rows
    ) -> None:
        self._has_batch = has_batch
        self._tensordicts, self._dicts = readers
        numbered = list(enumerate(fields))
        self._packed = [number for number, field in numbered if field.path in packed]
        self._large = [(number, f.key) for number, f in numbered if f.path not in packed]
        self._views = [packed[field.path] for field in fields if field.path in packed]
        self._views_of_one = [view.unsqueeze(0) for view in self._views]
        arrays = {
            field.key: bits_of(packed[field.path], carrier(field.dtype))
            for field in fields
            if field.path in packed
        }
        self._arrays = list(arrays.items())
        self.leaves = ValidatedLeaves(arrays)  # the row or rows that were read last

    def take(self, data: Any) -> ValidatedLeaves | None:
        """The leaves of a tensordict or a dict, until the next one comes; None unless they fit."""
        leaves = None if self._tensordicts is None else self._tensordicts.tensors(data, 0)
        if leaves is None:
            return self._take_arrays(self._dicts.of(data, 0))
        return self._take_tensors(leaves, self._views)

    def take_batch(self, data: TensorDict) -> ValidatedLeaves | None:
        """The leaves of a batch of as many rows as there is room for; None unless they fit."""
        leaves = None if self._tensordicts is None else self._tensordicts.tensors(data, 1)
        if leaves is None:
            return None
        return self._take_tensors(leaves, self._views if self._has_batch else self._views_of_one)

    def _take_tensors(
        self, leaves: list[torch.Tensor], views: list[torch.Tensor]
    ) -> ValidatedLeaves | None:
        try:
            for number, key in self._large:
                self.leaves[key] = leaves[number].numpy()
            packed = [leaves[number] for number in self._packed] if self._large else leaves
            copy_each(views, packed)
        except (TypeError, RuntimeError):  # leaves that lie elsewhere, or are not dense
            return None
        return self.leaves

    def _take_arrays(self, given: ValidatedLeaves | None) -> ValidatedLeaves | None:
        if given is None:
            return None
        for key, array in self._arrays:
            array[...] = given[key]
        for _, key in self._large:
            self.leaves[key] = given[key]
        return self.leaves


def copy_one_by_one(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies leaves where torch has no call for all of them."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


copy_each = getattr(torch, "_foreach_copy_", copy_one_by_one)
