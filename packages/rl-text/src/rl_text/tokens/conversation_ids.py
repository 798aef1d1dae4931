"""Ids of conversations that no other producer of trajectories gives."""

from __future__ import annotations

import itertools
import os
import secrets

import torch
from torch import Tensor

from rl_tensordict import CPU

PRODUCER_BITS = 31
COUNTER_BITS = 32


class ConversationIds:
    """Makes ids: 31 bits drawn when a process starts, and a counter of 32."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Draw the process's number anew: a fork must not repeat the ids of its parent."""
        self._producer = secrets.randbits(PRODUCER_BITS) << COUNTER_BITS
        self._begun = itertools.count()

    def take(self, count: int) -> Tensor:
        """The next ids, int64 ``[count]``."""
        begun = [next(self._begun) for _ in range(count)]  # one atomic step each: no lock
        return torch.tensor(begun, dtype=torch.int64, device=CPU) + self._producer


conversation_ids = ConversationIds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=conversation_ids.restart)
