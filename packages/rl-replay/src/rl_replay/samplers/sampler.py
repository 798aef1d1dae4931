"""The interface of samplers, which choose the rows of a batch."""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rl_replay.edges import note_given
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_flags, shown

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class _Dispatch(ABCMeta):
    """Lets `SomeSampler(replacement=False)` make the class that samples without replacement."""

    def __call__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
        check_flags(replacement=replacement)
        if replacement:
            try:
                return super().__call__(*args, **options)
            except TypeError as error:
                note_given(error, cls.__name__, *args, *options.values())
                raise
        other = getattr(cls, "without_replacement", None)
        if other is None:
            raise TypeError(
                f"{cls.__name__} has no variant without replacement: leave replacement out."
            )
        return other(*args, **options)


class Sampler(ABC, metaclass=_Dispatch):
    """Chooses the rows of a batch. Derive from it and write `sample`.

    Attributes:
        generator: Source of randomness; torch's global one if None. The buffer sets it.
        storage_number: Which storage it draws from. The buffer sets it, and resets the sampler
            where that was another one.
        ran_out: Whether the batch chosen last was the last one of an epoch.
        drop_last: Whether an epoch leaves out a last batch that is too short.
        id_keys: Columns that must be equal in rows of one trajectory, in addition to ids.
        end_keys: Flags of last steps, alongside those of the contract.
        proven: Whether it can only choose live rows; the choices of other samplers are checked.
        draws_slices: Whether it asks for trajectories, so that rows are indexed when written.
        truncated_key: The flag that marks the ends of slices; None for no flag.
        weighs_rows: Whether `complete` has something to add to a batch.
        priority_key: Where the buffer's rows have priorities, for samplers that use them.

    Example:
        >>> class Newest(Sampler):
        ...     def sample(self, storage, batch_size):
        ...         window = storage.ring.window()
        ...         return window.numbers(torch.arange(len(window))[-batch_size:]), {}
        >>> Newest().ran_out
        False
    """

    without_replacement: ClassVar[type[Sampler] | None] = None
    proven: ClassVar[bool] = False
    draws_slices: ClassVar[bool] = False
    weighs_rows: ClassVar[bool] = False

    generator: torch.Generator | None = None
    storage_number: int | None = None
    ran_out: bool = False
    drop_last: bool = False
    id_keys: Sequence[NestedKey] = ()
    end_keys: Sequence[NestedKey] = ()
    truncated_key: NestedKey | None = None
    priority_key: NestedKey | None = None

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Choose the rows of a batch; called under the buffer's lock.

        Args:
            storage: Where the rows are; `storage.ring.window()` says which can be read.
            batch_size: How many rows.

        Returns:
            Their row ids, int64 `[N]`, and what else the caller of `sample` may want to know.
        """

    def reset(self) -> None:
        """Forgets the epoch, because there are other rows."""

    def renumbered(self, storage: Storage) -> None:
        """Forgets the epoch, because rows were restored with other row ids.

        Args:
            storage: Where the rows are.
        """
        del storage
        self.reset()

    def replaced(self, storage: Storage, positions: torch.Tensor) -> None:
        """Takes note that some rows were replaced by others, and all rows got other row ids.

        Args:
            storage: Where the rows are.
            positions: Those of the new rows, int64 `[n]`.
        """

    def moved(self, storage: Storage, origins: torch.Tensor) -> None:
        """Takes note that rows were laid out anew, and got other row ids.

        Args:
            storage: Where the rows are.
            origins: The former positions of the first rows, int64 `[n]`; rows after them are new.
        """

    def complete(self, storage: Storage, info: dict[str, Any]) -> dict[str, Any]:
        """Adds to what is known of the rows of a batch, once none of them is exchanged any more.

        Args:
            storage: Where the rows are.
            info: What `sample` said of them.
        """
        del storage
        return info

    def update_priority(
        self, storage: Storage, row_ids: torch.Tensor, priority: torch.Tensor | float
    ) -> None:
        """Sets the priorities of some rows; does nothing where rows have none.

        Args:
            storage: Where the rows are.
            row_ids: int64 `[N]`.
            priority: One for all, or one for each, `[N]`.
        """

    def by_slice(
        self, row_ids: torch.Tensor, priority: torch.Tensor, slice_ids: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that have the priorities of a sample: all, unless slices have one each.

        Args:
            row_ids: int64 `[N]`.
            priority: One for each, `[N]`.
            slice_ids: The slice of each, int64 `[N]`; None for rows of no slices.
        """
        del slice_ids
        return row_ids, priority

    def reduce(self, priority: torch.Tensor, rows: int) -> torch.Tensor:
        """One priority a row, of a tensor `[rows, ...]`.

        Args:
            priority: The priorities.
            rows: How many rows.
        """
        del rows
        return priority

    def share(self, storage: Storage) -> None:
        """Moves the state that all processes of a shared buffer have in common to shared memory.

        Args:
            storage: Where the rows are.
        """

    def catch_up(self, storage: Storage) -> None:
        """Takes in what other processes and writers did, before the state is saved.

        Args:
            storage: Where the rows are.
        """

    def stats(self) -> dict[str, float]:
        """Figures of the sampler, for the buffer's `stats`."""
        return {}

    def progress(self) -> dict[str, Any]:
        """The state that draws change, which prefetched batches are taken back by."""
        return self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """The state that the next choices depend on, without the generator."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of another sampler.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: The state is of a sampler of another kind.
        """
        if state and type(self).state_dict is Sampler.state_dict:
            raise ValueError(
                f"a {type(self).__name__} has no state, and {shown(state)} was given: load it into "
                "a sampler of the kind that returned it."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
