"""Sequences of tensordict modules whose selections keep their distribution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModuleBase,
    TensorDictSequential,
)

from rl_tensordict import NestedKey, StepSequence, note_errors


class PolicySequence(StepSequence):
    """A sequence that runs its parts on plain tensors; its selections share the parts."""

    @note_errors
    def __getitem__(self, index: int | slice | str) -> TensorDictModuleBase:
        """Get one part by number or name, or by a slice a sequence of some, which shares them."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        return _sequence_of([*self.module[index]])

    @note_errors
    def select_subsequence(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> TensorDictSequential:
        """The parts that some inputs reach and some outputs need; None means all."""
        plain = TensorDictSequential(*self.module)
        return _sequence_of([*plain.select_subsequence(in_keys, out_keys).module])


def _sequence_of(parts: list[Any]) -> TensorDictSequential:
    """A sequence of shared parts; with a distribution if the last part has one."""
    *first, last = parts or [None]
    if isinstance(last, ProbabilisticTensorDictSequential):
        # its distribution becomes that of the sequence
        first, last = [*first, *last.module[:-1]], last.module[-1]
    if isinstance(last, ProbabilisticTensorDictModule):
        return ProbabilisticTensorDictSequential(*first, last)
    return TensorDictSequential(*parts)
