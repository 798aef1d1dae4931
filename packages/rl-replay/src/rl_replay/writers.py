"""Write policies: they decide which writes a buffer allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rl_tensordict import CPU

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rl_replay.samplers.sampler import Sampler
    from rl_replay.storages.storage import Storage


class Writer:
    """Decides which writes a buffer allows. Derive from it and override `check`.

    It neither writes nor holds a cursor: the ring of the storage has the place of the next row.

    Attributes:
        stores_index: Whether rows are returned with their position under `"index"` by `buffer[i]`
            too; samples always have it.
        overwrites_oldest: Whether the oldest row is overwritten first, as lossless storage needs.
        places_rows: Whether `store` writes the rows, rather than the storage one after the other.

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
    places_rows: ClassVar[bool] = False

    def check(self, count: int) -> None:
        """Raise for a write that is not allowed, before anything is changed.

        Args:
            count: How many rows are about to be written; 0 when the buffer is to be emptied.
        """

    def require_parts(self, storage: Storage, sampler: Sampler) -> None:
        """Raise for a storage or a sampler that the writer does not go with.

        Args:
            storage: The storage of the buffer.
            sampler: Its sampler.
        """

    def store(self, storage: Storage, rows: Any, *, elements: bool) -> torch.Tensor:
        """Writes rows, where `places_rows` says so.

        Args:
            storage: Where.
            rows: What the storage's `extend` takes.
            elements: Whether each is what `add` takes.

        Returns:
            The position of each, int64 `[n]`; -1 if it is not stored.
        """
        del elements
        span = storage.extend(rows)
        return storage.ring.positions(torch.as_tensor(list(span.numbers), device=CPU))

    def tell(self, storage: Storage, sampler: Sampler) -> None:
        """Tell a sampler which stored rows the last `store` replaced or moved.

        Args:
            storage: Where the rows are.
            sampler: The sampler of the buffer.
        """

    def note_changes(self, changed: TensorDictBase | None = None) -> None:
        """Says that stored rows are changed in place.

        Args:
            changed: The leaves that are; any of them unless given.
        """

    def reset(self) -> None:
        """Forgets what is known of the stored rows, because there are other rows."""

    def state_dict(self) -> dict[str, Any]:
        """The state that the next writes depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of another writer.

        Args:
            state: What its `state_dict` returned.
        """
        del state

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobinWriter(Writer):
    """Allows every write. Rows are written one after the other, over the oldest in a full storage.

    Example:
        >>> RoundRobinWriter().stores_index
        False
    """


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Allows every write of tensordicts; `buffer[i]` has the position of its rows under `"index"`.

    Example:
        >>> TensorDictRoundRobinWriter().stores_index
        True
    """

    stores_index = True


class ImmutableDatasetWriter(Writer):
    """Allows no write. A `TensorStorage` with this writer holds all rows of its tensors.

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
