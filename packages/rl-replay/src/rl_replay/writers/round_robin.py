"""Writers that overwrite the oldest rows."""

from __future__ import annotations

from rl_replay.writers.writer import Writer


class RoundRobinWriter(Writer):
    """Writes rows one after the other, and over the oldest once the storage is full.

    Example:
        >>> RoundRobinWriter().stores_index
        False
    """


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The same for tensordicts, whose rows are returned with their position under `"index"`.

    Example:
        >>> TensorDictRoundRobinWriter().stores_index
        True
    """

    stores_index = True
