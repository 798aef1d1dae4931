"""Rows as one block of bytes, for a receiver that shares no memory with the sender."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from rl_slabs.rows.blocks import aligned_bytes
from rl_slabs.rows.rows import ALIGNMENT, Rows
from rl_slabs.schema import RowSchema


class PackedRows(NamedTuple):
    """The rows of a tensordict in one block of bytes, copied once on either side.

    A transport moves an array of bytes without a copy of its own (pickle's protocol 5, an object
    store, a socket); a tensordict it takes apart leaf by leaf. Rows lie in the block as they do in
    a `Slab`.

    Attributes:
        schema: What each row holds.
        shape: The batch size.
        block: uint8 `[bytes]`; it may be read-only.

    Example:
        >>> from tensordict import TensorDict
        >>> packed = PackedRows.of(TensorDict({"reward": [[1.0], [2.0]]}, [2]))
        >>> packed.block.nbytes, packed.unpack()["reward"].tolist()
        (16, [[1.0], [2.0]])
    """

    schema: RowSchema
    shape: tuple[int, ...]
    block: NDArray[np.uint8]

    @classmethod
    def of(cls, batch: TensorDictBase) -> PackedRows:
        """Copy a tensordict into a block.

        Args:
            batch: On the CPU, with at least one element.

        Raises:
            TypeError: Its entries have no one size, or are no tensors.
            ValueError: It has no element.

        Example:
            >>> from tensordict import TensorDict
            >>> PackedRows.of(TensorDict({"done": [[True], [False]]}, [2])).shape
            (2,)
        """
        if isinstance(batch, LazyStackedTensorDict):
            raise TypeError(
                "entries without one size cannot lie in rows: bring them to one, or leave them out."
            )
        count = batch.batch_size.numel()
        if not count:
            raise ValueError(
                f"a block needs at least one row, got a batch of {list(batch.shape)}: send nothing."
            )
        schema = RowSchema.from_tensordict(batch)
        block = aligned_bytes(Rows.bytes_for(schema, count))
        Rows.over(schema, count, block).write(slice(0, count), batch.reshape(-1))
        return cls(schema, tuple(batch.shape), block)

    def unpack(self, *, copy: bool = True) -> TensorDictBase:
        """The rows, copied out of the block.

        Args:
            copy: False leaves large leaves in the block, which nothing else may use. They keep
                it alive.

        Example:
            >>> from tensordict import TensorDict
            >>> PackedRows.of(TensorDict({"done": [[True], [False]]}, [2])).unpack().batch_size
            torch.Size([2])
        """
        count = int(np.prod(self.shape, dtype=np.int64))
        rows = Rows.over(self.schema, count, _for_torch(self.block))
        if copy:
            return rows.read(slice(0, count), contiguous=True).reshape(self.shape)
        packed = [field.key for field in self.schema.packed]
        found = TensorDict({}, [count])
        if packed:
            found = rows.read(slice(0, count), keys=packed, contiguous=True)
        for path, leaf in rows.arrays.items():
            found.set(path, leaf.data)  # with a version counter of its own
        return found.reshape(self.shape)


def _for_torch(block: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same bytes, aligned, as an array that claims to be writable; do not write to it."""
    if block.ctypes.data % ALIGNMENT:  # a transport put it anywhere: torch needs whole numbers
        moved = aligned_bytes(block.nbytes)
        moved[:] = block
        return moved
    return block if block.flags.writeable else np.asarray(_WritableView(block))


class _WritableView:
    """Bytes of a read-only array, which torch would warn of."""

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self._block = block
        shown: dict[str, Any] = dict(block.__array_interface__)
        self.__array_interface__ = shown | {"data": (shown["data"][0], False)}
