"""Seeds of the environments in a batch."""

from __future__ import annotations

import numpy as np


def next_seed(seed: int) -> int:
    """Derive the seed of the next environment, below 2**32, from that of this one."""
    # hashed, so that the streams of neighbouring seeds do not overlap: seed + 1 would give
    # environment 1 of seed 0 the stream of environment 0 of seed 1
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def generator_seed(seed: int) -> int:
    """Derive the seed of torch's generator in a process, below 2**32, from its first seed."""
    # torch.manual_seed(seed) in the caller's process would give its actions the same numbers
    return int(np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0])
