"""The kinds of end that a segment can have."""

from __future__ import annotations

from enum import IntEnum


class EndKind(IntEnum):
    """How a segment ends.

    Attributes:
        CUT: the rows stop and no marker says why: bootstrap from the real next observation.
        TRUNCATED: the data ends, the task continues: bootstrap as well.
        TERMINATED: the task ended: the next state is worth nothing.

    Example:
        >>> EndKind(2).name
        'TERMINATED'
    """

    CUT = 0
    TRUNCATED = 1
    TERMINATED = 2
