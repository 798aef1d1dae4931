"""Write policies: which writes a buffer allows, and what it adds to its rows."""

from __future__ import annotations

from typing import Any


class Writer:
    """Says what a buffer may write. Derive from it and override what differs.

    The place of the next row is the storage's to know: its ring is shared with everyone who reads.

    Attributes:
        stores_index: Whether rows are returned with their position under `"index"` by `buffer[i]`
            too; samples always have it.
        overwrites_oldest: Whether the oldest row is the first to go, as lossless storage needs.

    Example:
        >>> class Quiet(Writer):
        ...     def check(self, count):
        ...         if count > 100:
        ...             raise ValueError(f"at most 100 rows a call, got {count}: split them.")
        >>> Quiet().overwrites_oldest
        True
    """

    stores_index: bool = False
    overwrites_oldest: bool = True

    def check(self, count: int) -> None:
        """Raise for a write before anything happens.

        Args:
            count: How many rows are about to be written; 0 when the buffer is to be emptied.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the next writes depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another writer was.

        Args:
            state: What its `state_dict` returned.
        """
        del state

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


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
