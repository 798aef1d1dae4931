"""The interface of storages: a ring of rows, written and read by their buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

import torch

from rl_replay.data.collate import stacked
from rl_replay.data.structure import Arrangement
from rl_replay.storages.checkpointer import Checkpointer
from rl_replay.storages.positions import follow_the_last, positions_at
from rl_replay.storages.private_session import PrivateSession
from rl_replay.storages.ring import Ring
from rl_replay.storages.row_store import refuse_to_allocate
from rl_replay.storages.session import Session
from rl_replay.storages.storage_id import StorageId
from rl_slabs import Span
from rl_tensordict import CPU

if TYPE_CHECKING:
    from rl_replay.trajectories.index import TrajectoryIndex
    from rl_tensordict import NestedKey


class Storage(ABC):
    """Holds the rows of a buffer. Derive from it and write `extend`, `read` and `replace`.

    Everything below a buffer's surface is flat: row n of the life of a storage is at position
    n modulo its capacity. Nothing here locks; the buffer does.

    Args:
        max_size: How many rows it holds, those of all its dimensions together.
        checkpointer: How dumps of its buffer keep the rows; as they lie unless given.
        ndim: Its dimensions, 1 to 3.

    Attributes:
        arrangement: How the dimensions of data map onto rows.
        session: Who writes the rows and who else may: the threads of this process, or others too.
        identity: A number of its own, by which an update tells samples of other storages.

    Raises:
        ValueError: A size or a number of dimensions out of range.
        TypeError: A size that is no integer.

    Example:
        >>> from rl_replay import ListStorage
        >>> storage = ListStorage(5)
        >>> _ = storage.extend(["a", "b"])
        >>> len(storage), storage.read(torch.tensor([1]))
        (2, ['b'])
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuses a class that lacks some of the methods to write."""
        if missing := sorted(cls.__abstractmethods__):
            raise TypeError(
                f"{cls.__name__} has no {', '.join(missing)}: derive from it and write them, or "
                "use a LazyTensorStorage."
            )
        return super().__new__(cls)

    def __init__(
        self, max_size: int, checkpointer: Checkpointer | None = None, *, ndim: int = 1
    ) -> None:
        if isinstance(max_size, bool) or not hasattr(max_size, "__index__"):
            raise TypeError(f"max_size must be an integer, got {max_size!r}: use int(max_size).")
        if max_size < 1:
            raise ValueError(f"max_size must be at least 1, got {max_size}.")
        if not isinstance(ndim, int) or ndim not in (1, 2, 3):
            raise ValueError(f"ndim must be 1, 2 or 3, got {ndim}: merge batch dimensions.")
        self.checkpointer = checkpointer
        self.arrangement = Arrangement(ndim, ndim - 1)
        self.session: Session = PrivateSession(int(max_size), refuse_to_allocate)
        self.identity = StorageId.drawn()

    @property
    def checkpointer(self) -> Checkpointer | None:
        """How dumps of its buffer keep the rows; None for as they lie.

        Raises:
            TypeError: Something that writes and restores no rows.
        """
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, checkpointer: Checkpointer | None) -> None:
        if checkpointer is not None and not isinstance(checkpointer, Checkpointer):
            raise TypeError(
                f"a checkpointer writes and restores rows, got {type(checkpointer).__name__}: "
                "derive from StorageCheckpointerBase."
            )
        self._checkpointer = checkpointer

    @property
    def ring(self) -> Ring:
        """Which rows are written next, and which can be read."""
        return self.session.ring

    @property
    def columns(self) -> torch.Size:
        """The storage's dimensions after the first; known from the first write on."""
        table = self.session.table
        return torch.Size() if table is None else table.layout.columns

    @property
    def max_size(self) -> int:
        """The capacity: as requested, rounded up to whole rows of columns."""
        return self.session.ring.capacity

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.arrangement.ndim

    @property
    def shape(self) -> torch.Size:
        """The shape of the live rows: along the first dimension, then the columns."""
        return torch.Size([self.max_size // self.columns.numel(), *self.columns])

    @property
    def is_shared(self) -> bool:
        """Whether other processes that are given the storage see the same rows."""
        return self.session.is_shared

    @property
    def epoch(self) -> int:
        """How often other processes changed all rows or their links; 0 where they cannot."""
        return self.session.epoch

    @property
    def replacements(self) -> int:
        """How often other processes dropped or loaded all rows; 0 where they cannot."""
        return self.session.replacements

    def share(self) -> None:
        """Let processes that are given the storage see the same rows, several writing at a time.

        Raises:
            TypeError: It cannot be shared.
        """
        raise TypeError(
            f"a {type(self).__name__} lives in the memory of this process and cannot be shared: "
            "use LazyTensorStorage or LazyMemmapStorage."
        )

    def exclusive(self) -> AbstractContextManager[None]:
        """Blocks writers while rows are updated in place.

        Raises:
            TimeoutError: A process that was stopped in here, or that holds the only lane.
        """
        return self.session.exclusive()

    def read_ahead(self) -> AbstractContextManager[None]:
        """Rows are read from the first to the last inside, as a dump does."""
        return self.session.read_ahead()

    def exclusive_writer(self) -> AbstractContextManager[None]:
        """Blocks the other writers where processes take turns to write; else does nothing."""
        return self.session.exclusive_writer()

    def __len__(self) -> int:
        session = self.session
        session.sync()
        return len(session.ring.window())

    def sync(self) -> None:
        """Attaches the rows that another process created, if any.

        Raises:
            RuntimeError: Another process emptied the storage and stores other keys elsewhere.
        """
        self.session.sync()

    @abstractmethod
    def extend(self, data: Any) -> Span:
        """Write several elements.

        Args:
            data: Elements along the batch dimensions.

        Returns:
            Where they lie, and their row numbers.
        """

    def add(self, data: Any) -> Span:
        """Write one element.

        Args:
            data: The element.

        Returns:
            Its position and its row number.
        """
        return self.extend([data])

    @abstractmethod
    def read(self, positions: torch.Tensor) -> Any:
        """Copies rows.

        Args:
            positions: int64, any shape.
        """

    def gather(self, positions: torch.Tensor, *, contiguous: bool = False) -> Any:
        """Copies rows that are known to exist.

        Args:
            positions: int64 `[n]`. One out of range may give any row.
            contiguous: Give each leaf memory of its own.
        """
        return self.read(positions)

    @abstractmethod
    def replace(self, positions: torch.Tensor, data: Any) -> None:
        """Replaces rows in place.

        Args:
            positions: int64, any shape.
            data: As many elements, of that batch shape.
        """

    def read_live(
        self, positions: torch.Tensor | int, *, some: bool = False
    ) -> tuple[torch.Tensor | int, Any]:
        """Copies rows, each as one write left it.

        Args:
            positions: int64, any shape, or a single position.
            some: Leave out rows that are being overwritten.

        Returns:
            The positions of the rows, and the rows.

        Raises:
            RuntimeError: Rows are being overwritten, and `some` is False.
        """
        return self.session.read_live(self, positions, some=some)

    def leaf_of(self, row_ids: torch.Tensor, key: NestedKey) -> torch.Tensor | None:
        """A leaf of some rows; None if no such leaf is stored.

        Args:
            row_ids: int64 `[N]`.
            key: Its key.
        """
        return self.session.leaf_of(row_ids, key)

    def read_one(self, position: int) -> Any:
        """Copies one row, without a batch dimension.

        Args:
            position: Its storage position.
        """
        return self.read(torch.tensor([position], device=CPU))[0]

    def get(self, index: Any) -> Any:
        """Copies rows by index, without the transforms of a buffer; `storage[index]` does too.

        Args:
            index: A number, a slice, numbers or flags; one for each dimension in a tuple.

        Raises:
            IndexError: There is no such row.
        """
        return self.read_live(positions_at(self, index))[1]

    def set(self, cursor: Any, data: Any) -> None:
        """Replaces rows by index, or appends the next ones; `storage[cursor] = data`.

        Args:
            cursor: A number, or several: of stored rows, or the next ones in order.
            data: One element, or as many as there are numbers.

        Raises:
            IndexError: There is no such row, and it is not the next one.
        """
        single = hasattr(cursor, "__index__") and not getattr(cursor, "ndim", 0)
        if follow_the_last(self, [cursor] if single else cursor):
            self.add(data) if single else self.extend(data)
        else:
            found = positions_at(self, [int(cursor)] if single else cursor)
            positions = torch.as_tensor(found, device=CPU)
            self.replace(positions, self.as_batch(data) if single else data)

    __getitem__, __setitem__ = get, set

    def as_batch(self, element: Any) -> Any:
        """One element as a batch of one."""
        return stacked([element])

    def empty(self) -> None:
        """Drops every row; the next rows may have other keys.

        Rows of a shared storage with other keys are stored elsewhere: processes that have the
        storage already are refused from then on, and want to be given it again.
        """
        self.session.empty()

    def arrange(self, dim_extend: int) -> None:
        """Sets the dimension of the data along which the storage grows.

        Args:
            dim_extend: From 0 to ndim - 1.

        Raises:
            ValueError: There is no such dimension.
            RuntimeError: Rows were written along another one.
        """
        if not 0 <= dim_extend < self.ndim:
            raise ValueError(
                f"dim_extend must be in [0, {self.ndim}), the dimensions of the storage: got "
                f"{dim_extend}."
            )
        if dim_extend != self.arrangement.dim_extend and len(self):
            raise RuntimeError(
                f"rows were written along dimension {self.arrangement.dim_extend} already, not "
                f"{dim_extend}: call empty() first."
            )
        self.arrangement = Arrangement(self.ndim, dim_extend)

    def trajectories(self) -> TrajectoryIndex:
        """The trajectories of the rows that can be read now.

        Raises:
            TypeError: The storage does not hold leaves by key.
        """
        raise self._without_keys("trajectories")

    def keep_index(self, wanted: bool) -> None:
        """Say whether slices are drawn, so that rows are taken into the index as they come.

        Args:
            wanted: Whether a sampler asks for trajectories.
        """
        self.session.keep_index(wanted)

    def require_boundaries(self) -> None:  # noqa: B027 - without leaves there is no flag to miss
        """Raise for slices where flags are stored that are no known markers.

        Raises:
            KeyError: No column is known to mark boundaries, and others look as if they did.
        """

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Adds columns that cut trajectories.

        Args:
            ids: Columns that must be equal in two rows for one to continue the other.
            ends: Flags of last steps.

        Raises:
            KeyError: There is no such column.
            TypeError: The storage does not hold leaves by key.
        """
        if ids or ends:
            raise self._without_keys("markers")

    def state_dict(self) -> dict[str, Any]:
        """Everything it holds, for `load_state_dict`.

        Raises:
            NotImplementedError: It does not know how.
        """
        raise NotImplementedError(f"{type(self).__name__} has no state_dict: write one.")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what another storage held.

        Args:
            state: What its `state_dict` returned.

        Raises:
            NotImplementedError: It does not know how.
        """
        raise NotImplementedError(f"{type(self).__name__} has no load_state_dict: write one.")

    def explain(self) -> list[str]:
        """What is stored, a line each."""
        return [f"{type(self).__name__}: {len(self)} of {self.max_size} rows"]

    def stats(self) -> dict[str, float]:
        """Figures about what is stored."""
        return {"size": len(self), "capacity": self.max_size, "written": self.ring.written}

    def require_own(self) -> None:
        """Raises if the storage belongs to the process that this one was forked from.

        Raises:
            RuntimeError: Another process, which this one was forked from, owns the storage.
        """
        self.session.require_own()

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.session.require_portable(f"a {type(self).__name__}")
        return object.__reduce_ex__(self, protocol)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.max_size} rows)"

    def _without_keys(self, what: str) -> TypeError:
        return TypeError(
            f"a {type(self).__name__} knows no {what}: store tensordicts in a LazyTensorStorage."
        )
