"""Seeds of environments that stand next to each other."""

from __future__ import annotations

import numpy as np


def next_seed(seed: int) -> int:
    """Draw the seed of the next environment from that of this one."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])
