"""The writers of an ensemble."""

from __future__ import annotations

from rl_replay.ensembles.members import Members
from rl_replay.writers import Writer


class WriterEnsemble(Members[Writer]):
    """The writers of several buffers, each of which decides which writes its buffer allows.

    Args:
        *writers: One for each buffer.

    Raises:
        ValueError: No writer.
        TypeError: A member that is no writer.

    Example:
        >>> from rl_replay import RoundRobinWriter
        >>> len(WriterEnsemble(RoundRobinWriter(), RoundRobinWriter())[1:])
        1
    """

    def __init__(self, *writers: Writer) -> None:
        super().__init__(*writers)
        for writer in writers:
            if not isinstance(writer, Writer):
                raise TypeError(f"expected writers, got {type(writer).__name__}.")
