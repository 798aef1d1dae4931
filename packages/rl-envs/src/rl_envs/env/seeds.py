"""Seeds of environments that stand beside each other."""

from __future__ import annotations

import numpy as np


def next_seed(seed: int) -> int:
    """Draw the seed of the next environment from that of this one.

    Args:
        seed: a whole number, 0 or more.

    Returns:
        A number below 2³²; seeds that are neighbours have successors that are not.

    Example:
        >>> next_seed(0) == next_seed(0), next_seed(0) == next_seed(1)
        (True, False)
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0])
