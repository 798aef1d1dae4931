"""A writer for data that stay as they are."""

from __future__ import annotations

from rl_replay.writers.writer import Writer


class ImmutableDatasetWriter(Writer):
    """Refuses every write. A `TensorStorage` under it holds all rows of its tensors.

    Example:
        >>> ImmutableDatasetWriter().check(1)
        Traceback (most recent call last):
        RuntimeError: this buffer is an immutable dataset: make another buffer to write to.
    """

    def check(self, count: int) -> None:
        """Raise: the storage is immutable.

        Raises:
            RuntimeError: Always.
        """
        del count
        raise RuntimeError("this buffer is an immutable dataset: make another buffer to write to.")
