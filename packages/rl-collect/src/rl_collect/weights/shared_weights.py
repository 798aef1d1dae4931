"""Weights in shared memory: written once, read by every worker when it is ready to."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_collect.weights.load import check_weights, load_weights, state_of
from rl_slabs import Lanes, PackedRows, RowSchema, Slab
from rl_tensordict import CPU

KEPT = 4
"""Versions in memory; a reader that meets one being overwritten takes the newest instead."""


class SharedWeights:
    """The newest weights of a policy, for processes that act with it."""

    # The first version are the weights it was made of; each publish makes the next one. No process
    # waits: a reader takes the newest version that is whole.

    def __init__(self, slab: Slab, first: int = 0) -> None:
        self._slab, self._lanes, self._first = slab, Lanes(slab), first
        self._sizes = {field.path[0]: (field.dtype, field.shape) for field in slab.schema.fields}

    @classmethod
    def like(cls, policy: Any, first: int = 0) -> SharedWeights:
        """Make one for the weights of a policy."""
        state = state_of(policy)
        schema = RowSchema({name: (leaf.dtype, tuple(leaf.shape)) for name, leaf in state.items()})
        shared_weights = cls(Slab.shared(schema, KEPT), first)
        shared_weights.publish(state)
        return shared_weights

    @property
    def newest(self) -> int:
        """The newest version."""
        window = self._lanes.window()
        return self._first + window.first[0] + window.counts[0] - 1

    def publish(self, weights: Any) -> int:
        """Write new weights; one thread at a time."""
        state = check_weights(state_of(weights), self._sizes)
        found = {
            name: state[name].detach().to("cpu", dtype) for name, (dtype, _) in self._sizes.items()
        }
        lane = self._lanes.claim()
        span = lane.reserve(1)
        self._slab.write(span.rows, TensorDict({k: v.unsqueeze(0) for k, v in found.items()}, [1]))
        lane.publish(1)
        lane.release()  # the next version may come from another thread
        return self._first + span.numbers[0]

    def load_into(self, policy: Any, have: int) -> int:
        """Copy the newest weights into a policy, where it has older ones."""
        if self.newest <= have:
            return have
        version, row = self._newest_row()
        found: dict[str, Tensor] = {str(name): leaf[0] for name, leaf in row.items()}
        load_weights(policy, found)
        return version

    def packed(self) -> tuple[int, PackedRows]:
        """The newest version and its weights, as one row in a block."""
        version, row = self._newest_row()
        return version, PackedRows.of(row)

    def _newest_row(self) -> tuple[int, TensorDict]:
        """The newest version that is whole."""
        while True:
            newest = self.newest
            number = torch.tensor([newest - self._first], device=CPU)
            row = self._slab.read(self._lanes.rows(number))
            if bool(self._lanes.accept(number).all()):
                return newest, row

    def close(self) -> None:
        """Let go of the memory."""
        self._slab.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._slab, self._first)
