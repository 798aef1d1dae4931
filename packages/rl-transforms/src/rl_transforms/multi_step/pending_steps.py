"""The last steps of every environment, held back to keep batches ``[*B, T]`` rectangular."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_layout import keys
from rl_transforms.multi_step.flat_leaves import OWN_ID, FlatRows
from rl_transforms.multi_step.trajectory_order import PRODUCER_SHIFT

ProducerIds = tuple[int, ...]
NO_PRODUCER: ProducerIds = ()  # of rows without ids


class PendingSteps:
    """The last steps of each producer's environments, by producer."""

    def __init__(self) -> None:
        self.blocks: dict[ProducerIds, FlatRows] = {}

    def joined(self, fresh: FlatRows) -> tuple[ProducerIds, FlatRows]:
        """Append rows to the held steps of the same producer."""
        fresh = self._checked(fresh)
        producer = NO_PRODUCER
        if OWN_ID not in fresh.leaves:
            producer = _producer(fresh.leaves[keys.TRAJ_IDS].reshape(-1, fresh.shape[-1]))
        before = self.blocks.get(producer)
        return producer, fresh if before is None else before.followed_by(fresh)

    def keep(self, producer: ProducerIds, rows: FlatRows, steps: int) -> None:
        """Hold back a copy of the last steps of every environment."""
        width = rows.shape[-1]
        steps = min(steps, width)
        if not steps:
            self.blocks.pop(producer, None)
            return
        # [B * T, ...] -> [B, steps, ...] -> [B * steps, ...]; cloned, so as not to keep the batch
        leaves = {
            key: leaf.reshape(-1, width, *leaf.shape[1:])[:, width - steps :].flatten(0, 1).clone()
            for key, leaf in rows.leaves.items()
        }
        shape = torch.Size((*rows.shape[:-1], steps))
        self.blocks[producer] = FlatRows(leaves, rows.tails, shape, rows.device)

    def all(self) -> FlatRows | None:
        """All held steps ``[*B, T]``, producers one after another; None if there are none."""
        held: FlatRows | None = None
        for block in self.blocks.values():
            held = block if held is None else held.followed_by(block)
        return held

    def state(self) -> dict[str, dict[str, Any]]:
        """The held steps as nested dictionaries, keyed by the index of their producer."""
        return {
            str(place): {
                "producer": list(producer),
                "rows": block.batch(own=True).to_dict(),
                "shape": list(block.shape),
            }
            for place, (producer, block) in enumerate(self.blocks.items())
        }

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `state` returned."""
        self.blocks = {
            tuple(entry["producer"]): FlatRows.of(
                TensorDict(entry["rows"], batch_size=entry["shape"])
            )
            for entry in state.values()
        }

    def require_alike(self, fresh: FlatRows) -> None:
        """Raise for rows whose batch dimensions differ from those of the held steps."""
        if len(fresh.shape) < 2:
            msg = (
                f"expected [*B, T], one row for each environment: got {list(fresh.shape)}. "
                "Flat rows need columns=False."
            )
            raise ValueError(msg)
        for block in self.blocks.values():
            block.check_environments(fresh)

    def _checked(self, fresh: FlatRows) -> FlatRows:
        self.require_alike(fresh)
        real = fresh.real()
        if len(real) != len(fresh):
            msg = (
                f"{len(fresh) - len(real)} of {len(fresh)} rows are padding, which has no place "
                "among columns of environments: use columns=False."
            )
            raise ValueError(msg)
        return real


def _producer(ids: Tensor) -> ProducerIds:
    """The producers of a block ``[B, T]``: one number where all environments share it."""
    numbers = (ids[:, 0] >> PRODUCER_SHIFT).tolist()
    return (numbers[0],) if numbers.count(numbers[0]) == len(numbers) else tuple(numbers)
