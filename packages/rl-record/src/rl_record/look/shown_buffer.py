"""The rows of a buffer, and what one sample of it draws."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection, lazy_stack
from torch import Tensor

from rl_layout import keys
from rl_record.look.shown_batch import ShownBatch
from rl_record.look.shown_rows import SampledRows
from rl_tensordict import CPU, as_tensor

SEED, ROWS_OF_A_SAMPLE = 0, 256


def is_buffer(source: Any) -> bool:
    """Whether an object is a buffer of rl-replay, which is not imported to find out."""
    return all(hasattr(source, name) for name in ("storage", "sampler", "set_rng", "sample"))


def is_ensemble(buffer: Any) -> bool:
    """Whether a buffer is an ensemble of several, which it is iterated over."""
    return hasattr(buffer.sampler, "num_buffer_sampled")


class ShownBuffer:
    """The rows that a buffer stores, in the order of their positions, without its transforms.

    A sample has the buffer's own batch size, or else the given one.
    """

    def __init__(self, buffer: Any, title: str, batch_size: int | None = None) -> None:
        storage: Any = getattr(buffer, "storage", None)
        if not hasattr(storage, "ring"):
            msg = f"expected a buffer with one storage, got a {type(buffer).__name__}: look at "
            raise TypeError(msg + "a batch of it.")
        if not len(storage):
            msg = f"expected rows: the {type(storage).__name__} of this buffer is empty."
            raise ValueError(msg)
        self._storage = storage
        self._positions = _live_positions(buffer)  # [N] or [*B, T]
        self._stack: ShownBatch | None = None
        if hasattr(storage, "read_keys"):
            self._read_small()
        else:
            self._read_objects()
        kind = type(buffer).__name__
        self.title = f"{title} {list(self.batch.batch_size)}, {kind}"
        self.sample: SampledRows | None = self._drawn(
            buffer, buffer.batch_size or batch_size or ROWS_OF_A_SAMPLE
        )

    def read(self, key: tuple[str, ...], rows: Tensor | None = None) -> Tensor:
        """A leaf of some flat rows, or of all."""
        if self._stack is not None:
            return self._stack.read(key, rows)
        value = self.batch.get(key, None)
        if value is not None:
            leaf: Tensor = value.flatten(0, self.batch.ndim - 1)
            return leaf if rows is None else leaf[rows]
        flat = self._positions.reshape(-1)
        found = self._storage.read_keys(flat if rows is None else flat[rows], [key])
        return cast("Tensor", found.get(key)).cpu()

    def _read_small(self) -> None:
        """The small leaves of all rows at once; of what is a large leaf, one row says."""
        first = _tensordict(self._storage.read(self._positions.reshape(-1)[:1]))
        self.leaves = ShownBatch(first).leaves
        small = [leaf.key for leaf in self.leaves if leaf.is_small]
        shape = self._positions.shape
        self.batch: TensorDictBase = TensorDict({}, shape)
        if small:
            cells = self._storage.read_keys(self._positions.reshape(-1), small)
            for key in small:
                # apart from each other: columns of packed rows are slow to go through
                value = cells.get(key).cpu().contiguous()
                self.batch.set(key, value.reshape(*shape, *value.shape[1:]))
        if len(shape) > 1:
            self.batch.names = [None] * (len(shape) - 1) + [keys.TIME]

    def _read_objects(self) -> None:
        found = self._storage.read(self._positions)
        if not all(map(is_tensor_collection, found)):
            kind = type(next(one for one in found if not is_tensor_collection(one))).__name__
            msg = f"expected rows that are tensordicts, this buffer stores a {kind}."
            raise TypeError(msg)
        self._stack = ShownBatch(lazy_stack([one.to_tensordict() for one in found]))
        self.batch, self.leaves = self._stack.batch, self._stack.leaves

    def _drawn(self, buffer: Any, size: int) -> SampledRows:
        """What one sample draws; sampler and generator are as before afterwards."""
        sampler, title = buffer.sampler, type(buffer.sampler).__name__
        nothing = torch.empty(0, dtype=torch.int64, device=CPU)
        former = buffer.set_rng(torch.Generator().manual_seed(SEED))
        state = copy.deepcopy(sampler.state_dict())
        try:
            batch, info = buffer.sample(size, return_info=True)
        except Exception as error:  # a sampler or a transform of the user's may raise anything
            return SampledRows(nothing, None, title, f"{type(error).__name__}: {error}")
        finally:
            # in this order: prefetched batches, which are dropped, give the sampler their state
            buffer.set_rng(former)
            sampler.load_state_dict(state)
        positions = self._storage.ring.positions(as_tensor(info["row"]).reshape(-1).cpu())
        row_at = torch.full((self._storage.max_size,), -1, device=CPU)
        row_at[self._positions.reshape(-1)] = torch.arange(self._positions.numel(), device=CPU)
        rows = row_at[positions]
        is_rows = isinstance(batch, TensorDictBase)
        ids: Any = batch.get(keys.SLICE_IDS, None) if is_rows else None
        known = ids.reshape(-1).cpu() if ids is not None and ids.numel() == len(rows) else None
        return SampledRows(rows, known, title)


def _live_positions(buffer: Any) -> Tensor:
    """The positions of the stored rows, int64 ``[N]`` or ``[*B, T]`` with time last."""
    ring, storage = buffer.storage.ring, buffer.storage
    window = ring.window()
    positions = ring.positions(window.numbers(torch.arange(len(window), device=CPU))).sort().values
    if storage.ndim == 1:
        return cast("Tensor", positions)
    grid = positions.view(-1, *storage.columns)
    return cast("Tensor", grid.transpose(0, buffer.dim_extend).contiguous())


def _tensordict(rows: Any) -> TensorDictBase:
    """Rows of any structure as a tensordict; a tree of tensors has their keys."""
    if isinstance(rows, TensorDictBase):
        return rows
    if is_tensor_collection(rows):
        return cast("TensorDictBase", rows.to_tensordict())
    if isinstance(rows, dict):
        return TensorDict(rows, [1])
    msg = f"expected a buffer of tensordicts, this one stores a {type(rows).__name__}."
    raise TypeError(msg)
