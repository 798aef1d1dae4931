"""The replay buffer: a ring over a list of rows, the oldest overwritten."""

import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from skeleton.segments import Marker, markers


class ListBuffer:
    """Stores (write number, marker, row): write number n is at position n % capacity."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.written = capacity, 0
        self.stored: list[tuple[int, Marker, TensorDictBase]] = []

    def __len__(self) -> int:
        """Count the rows that can be read."""
        return len(self.stored)

    def extend(self, batch: TensorDictBase) -> list[int]:
        """Copy rows [N] or [B, T] in, environment by environment; return their positions."""
        flat = batch.reshape(-1).clone()
        if len(flat) > self.capacity:
            msg = f"{len(flat)} rows do not fit a capacity of {self.capacity}: extend by fewer."
            raise ValueError(msg)
        first = self.written
        for marker, row in zip(markers(flat), flat.unbind(0), strict=True):
            position = self.written % self.capacity
            # a slice, because it appends until the ring is full
            self.stored[position : position + 1] = [(self.written, marker, row)]
            self.written += 1
        return [number % self.capacity for number in range(first, self.written)]

    def read(self, positions: list[int]) -> TensorDictBase:
        """Copy rows out, [len(positions)], with their positions and write numbers."""
        rows = TensorDict.stack([self.stored[position][2] for position in positions])
        rows[keys.INDEX] = torch.tensor(positions)
        rows[keys.ROW] = torch.tensor([self.stored[position][0] for position in positions])
        rows.names = [keys.TIME]
        return rows
