"""The transforms of a buffer: applied to samples, and in reverse to what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection

from rl_replay.storages import Storage, TensorStorage
from rl_replay.writers import Writer
from rl_slabs import Span
from rl_tensordict import NestedKey
from rl_transforms import CallableTransform, Compose, MultiStepTransform, Transform, as_transform


class BufferTransforms(Compose):
    """The transforms of a buffer, with a count of their changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0  # 0 as long as there were never any

    def insert(self, index: int, transform: Transform | Callable[[Any], Any]) -> Compose:
        """Add a transform that works in a buffer; see `Compose.insert`."""
        made = as_transform(transform)
        made.check_place("buffer")
        super().insert(index, made)
        self.changes += 1
        return self

    def apply_to(self, batch: Any, storage: Storage) -> Any:
        """Transforms a batch; plain functions take any data, not tensordicts alone."""
        for one in self:
            if isinstance(one, CallableTransform):
                batch = one.function(batch)
            elif one.needs_rows:
                source = StoredRows(storage) if isinstance(storage, TensorStorage) else None
                batch = one(batch, source)
            else:
                batch = one(batch)
        return batch

    def store(self, storage: Storage, data: Any, *, elements: bool = False) -> Span | None:
        """Stores what the inverse transforms make of data; None if they hold all of it back."""
        # With `elements` the data are stacked along the dimension that grows, and each may be a
        # whole trajectory. After a failed write the transforms hold what they held before it.
        held = self.write_state()
        if held is not None:
            storage.ring.begin_attempt()
        try:
            whole = elements and is_tensor_collection(data) and data.batch_dims > storage.ndim
            rows = self._inverted(storage, data)
            if rows is None:
                return None
            if whole and isinstance(storage, TensorStorage):
                return storage.extend_elements(rows)
            return storage.extend(rows)
        except BaseException:
            # rows that were stored all the same would be passed on a second time
            if held is not None and not storage.ring.attempt_stands():
                self.restore_write_state(held)
            raise

    def _inverted(self, storage: Storage, data: Any) -> Any:
        """What is to be stored, which has the dimensions of the storage if the data have them."""
        rows: Any = self.inv(data)
        if is_tensor_collection(rows) and is_tensor_collection(data):
            ndim = storage.ndim
            if rows.batch_dims < ndim <= data.batch_dims:
                raise ValueError(
                    f"the transforms made rows of batch size {list(rows.batch_size)} of "
                    f"{list(data.batch_size)}, and a storage with ndim={ndim} takes {ndim} "
                    "dimensions: MultiStepTransform(..., columns=True) keeps them. Or use ndim=1."
                )
        return rows

    def note_held(self, error: Exception) -> None:
        """Adds to the error of an empty buffer which transforms hold its rows back."""
        for one in self:
            if isinstance(one, MultiStepTransform) and (held := one.held) is not None:
                error.add_note(
                    f"{type(one).__name__} holds {held.numel()} rows back until those that they "
                    "wait for have come."
                )

    def store_by(
        self, writer: Writer, storage: Storage, data: Any, *, elements: bool = False
    ) -> torch.Tensor:
        """Lets a writer store the inverse transforms' output; its positions, or -1."""
        held = self.write_state()
        try:
            rows = self._inverted(storage, data) if self.changes else data
            if rows is None:
                return torch.empty(0, dtype=torch.int64, device="cpu")
            return writer.store(storage, rows, elements=elements)
        except BaseException:
            if held is not None:
                self.restore_write_state(held)
            raise


class Inverted(Transform):
    """A transform whose two directions are exchanged."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.inner = transform

    def forward(self, batch: Any) -> Any:
        """What the transform's inverse does."""
        return self.inner.inv(batch)

    def inv(self, batch: Any) -> Any:
        """What the transform does."""
        return self.inner(batch)


class StoredRows:
    """The rows of a storage by row id, each with a mask of what the markers prove."""

    def __init__(self, storage: TensorStorage) -> None:
        self._storage = storage

    def read(
        self, rows: torch.Tensor, keys: Sequence[NestedKey]
    ) -> tuple[TensorDictBase, torch.Tensor]:
        """Read keys of some rows."""
        storage, ring = self._storage, self._storage.ring
        live = ring.is_live(rows)
        # a row that is gone is read as the oldest one, and masked
        numbers = torch.where(live, rows, ring.window().first[0])
        cells, whole = storage.read_standing(numbers, list(keys))
        return cells, live & whole

    def after(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps later in the same trajectories."""
        numbers, proved = self._storage.after(rows.reshape(-1).cpu().numpy(), k)
        return (
            torch.from_numpy(numbers).reshape(rows.shape),
            torch.from_numpy(proved).reshape(rows.shape),
        )

    def before(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps earlier in the same trajectories; see `after`."""
        return self.after(rows, -k)
