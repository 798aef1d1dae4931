"""Objects sent from one rank to another, through gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_collect.multi.pickled import Pickled
from rl_tensordict import CPU

REQUEST, REPLY = 1, 2
"""Tags of messages: to a worker, and from one."""


class Sending:
    """A message on its way; it holds the memory until that was read."""

    def __init__(self, message: Pickled, rank: int, group: Any, tag: int) -> None:
        parts = [torch.frombuffer(bytearray(message.head), dtype=torch.uint8)]
        # what is pickled by reference may be read-only, which tensors cannot be
        parts += [
            torch.from_numpy(one if one.flags.writeable else one.copy()) for one in message[1]
        ]
        sizes = torch.tensor([len(part) for part in parts], device=CPU)
        count = torch.tensor([len(parts)], device=CPU)
        self._parts = [count, sizes, *(part for part in parts if len(part))]
        self._works = [dist.isend(part, rank, group, tag) for part in self._parts]

    def wait(self) -> None:
        """Wait until all of it was taken."""
        for work in self._works:
            if work is not None:
                work.wait()


def receive(rank: int, group: Any, tag: int) -> Pickled:
    """Wait for a message of a rank; raises `RuntimeError` where the rank is gone."""
    count = _received(1, torch.int64, rank, group, tag)
    sizes = _received(int(count), torch.int64, rank, group, tag)
    head, *buffers = [
        _received(size, torch.uint8, rank, group, tag).numpy() for size in sizes.tolist()
    ]
    return Pickled(head.tobytes(), buffers)


def _received(size: int, dtype: torch.dtype, rank: int, group: Any, tag: int) -> Tensor:
    part = torch.empty(size, dtype=dtype, device=CPU)
    if size:
        dist.recv(part, rank, group, tag)
    return part
