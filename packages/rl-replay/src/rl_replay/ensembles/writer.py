"""The writers of an ensemble."""

from __future__ import annotations

from rl_replay.ensembles.members import Members
from rl_replay.writers import Writer


class WriterEnsemble(Members[Writer]):
    """The writers of several buffers, each of which decides which writes its buffer allows.

    Args:
        *members: One for each buffer.

    Raises:
        ValueError: No writer.
        TypeError: A member that is no writer.

    Example:
        >>> from rl_replay import RoundRobinWriter
        >>> len(WriterEnsemble(RoundRobinWriter(), RoundRobinWriter())[1:])
        1
    """

    _kind = Writer
